// fy-bandwidth: how fast does an OpenCL device copy memory and do arithmetic, and does it compute what a CPU does?
//
// Exit status: 0 measured and right; 1 the OpenCL interface failed; 2 wrong usage or a file could not be read or
// written; 3 no device; 4 the device computed something wrong.

#include "measure.hpp"

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <unistd.h>

#ifndef FY_VERSION
#define FY_VERSION "unreleased"
#endif

namespace {

constexpr size_t kMiB = size_t{1} << 20;

struct UsageError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Options {
    std::optional<std::string> metrics;
    std::optional<std::string> kernels;
    std::optional<size_t> size_mib;
};

constexpr const char *kUsage =
    "usage: fy-bandwidth [--metrics FILE] [--kernels DIR] [--size-mib N]\n"
    "       fy-bandwidth --version | --help\n\n"
    "Measures copy bandwidth (GB/s) and fused multiply-add throughput (GFLOP/s) of an OpenCL device, GPUs first,\n"
    "and compares what it computed with the CPU.\n\n"
    "  --metrics FILE   also write the figures to FILE, as JSON\n"
    "  --kernels DIR    read copy.cl and fma.cl from DIR (default: ../share/fy-opencl-kernels beside the program)\n"
    "  --size-mib N     copy N MiB, 1 to 4096 (default: 256 on a GPU, 64 on a CPU)\n";

std::string read_file(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    if (!file || !(text << file.rdbuf())) throw UsageError("cannot read " + path);
    return text.str();
}

// The kernels are found from where the program is, so that an environment can be moved.
std::string default_kernels() {
    char path[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length < 0) throw UsageError("cannot find the program's own folder; name the kernels with --kernels");
    const std::string program(path, static_cast<size_t>(length));
    const std::string folder = program.substr(0, program.rfind('/'));
    return folder + "/../share/fy-opencl-kernels";
}

Options parse(int argc, char **argv) {
    Options options;
    for (int i = 1; i < argc; ++i) {
        const std::string name = argv[i];
        auto value = [&]() -> std::string {
            if (++i >= argc) throw UsageError(name + " needs a value");
            return argv[i];
        };
        if (name == "--metrics") {
            options.metrics = value();
        } else if (name == "--kernels") {
            options.kernels = value();
        } else if (name == "--size-mib") {
            const std::string text = value();
            char *end = nullptr;
            const long size = std::strtol(text.c_str(), &end, 10);
            if (*end != '\0' || size < 1 || size > 4096)
                throw UsageError("--size-mib takes a number from 1 to 4096, not `" + text + "`");
            options.size_mib = static_cast<size_t>(size);
        } else {
            throw UsageError("unknown option `" + name + "`");
        }
    }
    return options;
}

void write_metrics(const std::string &path, double bandwidth, double throughput) {
    std::ofstream file(path);
    char text[256];
    std::snprintf(text, sizeof text,
                  "{\n  \"copy_bandwidth\": {\"value\": \"%.3f\", \"unit\": \"GB/s\"},\n"
                  "  \"fma_throughput\": {\"value\": \"%.3f\", \"unit\": \"GFLOP/s\"}\n}\n",
                  bandwidth, throughput);
    file << text;
    file.close();
    if (!file) throw UsageError("cannot write " + path);
}

int measure(const Options &options) {
    const std::string kernels = options.kernels.value_or(default_kernels());
    const std::string copy_source = read_file(kernels + "/copy.cl");
    const std::string fma_source = read_file(kernels + "/fma.cl");

    const std::vector<fy::Device> found = fy::devices();
    if (found.empty()) {
        std::fprintf(stderr, "fy-bandwidth: no OpenCL device: no driver is registered in /etc/OpenCL/vendors, or none "
                             "of them finds a device\n");
        return 3;
    }
    const fy::Device &device = found.front();
    const char *label = device.simulated() ? " (CPU, simulated GPU)" : "";
    std::printf("platform    %s\n", device.platform_name.c_str());
    std::printf("device      %s%s\n", device.name.c_str(), label);
    std::printf("driver      %s\n", device.driver.c_str());

    size_t bytes = options.size_mib.value_or(device.simulated() ? 64 : 256) * kMiB;
    if (!options.size_mib && bytes > device.max_allocation) bytes = device.max_allocation / kMiB * kMiB;

    const fy::Session session(device);
    const double bandwidth = fy::copy_bandwidth(session, copy_source, bytes);
    std::printf("copy        %.1f GB/s over %zu MiB\n", bandwidth, bytes / kMiB);
    const double throughput = fy::fma_throughput(session, fma_source);
    std::printf("fma         %.1f GFLOP/s\n", throughput);
    std::printf("check       equal to the CPU's results\n");
    if (options.metrics) write_metrics(*options.metrics, bandwidth, throughput);
    return 0;
}

} // namespace

int main(int argc, char **argv) {
    try {
        if (argc == 2 && std::strcmp(argv[1], "--version") == 0) {
            std::printf("fy-bandwidth %s\n", FY_VERSION);
            return 0;
        }
        if (argc == 2 && std::strcmp(argv[1], "--help") == 0) {
            std::fputs(kUsage, stdout);
            return 0;
        }
        return measure(parse(argc, argv));
    } catch (const UsageError &error) {
        std::fprintf(stderr, "fy-bandwidth: %s\n", error.what());
        return 2;
    } catch (const fy::WrongResult &error) {
        std::fprintf(stderr, "fy-bandwidth: wrong result: %s\n", error.what());
        return 4;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "fy-bandwidth: %s\n", error.what());
        return 1;
    }
}
