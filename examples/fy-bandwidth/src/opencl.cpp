#include "opencl.hpp"

#include <algorithm>

namespace fy {

namespace {

// The platform list is empty: what the loader answers when no driver is installed (cl_khr_icd).
constexpr cl_int kPlatformNotFound = -1001;

std::string platform_text(cl_platform_id platform, cl_platform_info what) {
    size_t length = 0;
    check(clGetPlatformInfo(platform, what, 0, nullptr, &length), "clGetPlatformInfo");
    std::string text(length, '\0');
    check(clGetPlatformInfo(platform, what, length, text.data(), nullptr), "clGetPlatformInfo");
    text.resize(text.find('\0') == std::string::npos ? length : text.find('\0'));
    return text;
}

std::string device_text(cl_device_id device, cl_device_info what) {
    size_t length = 0;
    check(clGetDeviceInfo(device, what, 0, nullptr, &length), "clGetDeviceInfo");
    std::string text(length, '\0');
    check(clGetDeviceInfo(device, what, length, text.data(), nullptr), "clGetDeviceInfo");
    text.resize(text.find('\0') == std::string::npos ? length : text.find('\0'));
    return text;
}

template <typename Value> Value device_value(cl_device_id device, cl_device_info what) {
    Value value{};
    check(clGetDeviceInfo(device, what, sizeof value, &value, nullptr), "clGetDeviceInfo");
    return value;
}

int rank(const Device &device) {
    if (device.type & CL_DEVICE_TYPE_GPU) return 0;
    if (device.type & CL_DEVICE_TYPE_ACCELERATOR) return 1;
    return 2;
}

} // namespace

OpenClError::OpenClError(const std::string &call, cl_int code)
    : std::runtime_error(call + " failed with OpenCL error " + std::to_string(code)) {}

void check(cl_int code, const char *call) {
    if (code != CL_SUCCESS) throw OpenClError(call, code);
}

std::vector<Device> devices() {
    cl_uint count = 0;
    const cl_int answer = clGetPlatformIDs(0, nullptr, &count);
    if (answer == kPlatformNotFound || count == 0) return {};
    check(answer, "clGetPlatformIDs");
    std::vector<cl_platform_id> platforms(count);
    check(clGetPlatformIDs(count, platforms.data(), nullptr), "clGetPlatformIDs");

    std::vector<Device> found;
    for (cl_platform_id platform : platforms) {
        cl_uint many = 0;
        const cl_int code = clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &many);
        if (code == CL_DEVICE_NOT_FOUND || many == 0) continue;
        check(code, "clGetDeviceIDs");
        std::vector<cl_device_id> ids(many);
        check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, many, ids.data(), nullptr), "clGetDeviceIDs");
        for (cl_device_id id : ids) {
            found.push_back({platform, id, device_value<cl_device_type>(id, CL_DEVICE_TYPE),
                             platform_text(platform, CL_PLATFORM_NAME), device_text(id, CL_DEVICE_NAME),
                             device_text(id, CL_DRIVER_VERSION),
                             device_value<cl_ulong>(id, CL_DEVICE_MAX_MEM_ALLOC_SIZE)});
        }
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const Device &a, const Device &b) { return rank(a) < rank(b); });
    return found;
}

Session::Session(const Device &device) : device_(device.id) {
    cl_int code = CL_SUCCESS;
    context_.reset(clCreateContext(nullptr, 1, &device_, nullptr, nullptr, &code));
    check(code, "clCreateContext");
    queue_.reset(clCreateCommandQueue(context_.get(), device_, CL_QUEUE_PROFILING_ENABLE, &code));
    check(code, "clCreateCommandQueue");
}

Buffer Session::buffer(cl_mem_flags flags, size_t bytes) const {
    cl_int code = CL_SUCCESS;
    Buffer made(clCreateBuffer(context_.get(), flags, bytes, nullptr, &code));
    check(code, "clCreateBuffer");
    return made;
}

void Session::write(const Buffer &buffer, const void *from, size_t bytes) const {
    check(clEnqueueWriteBuffer(queue_.get(), buffer.get(), CL_TRUE, 0, bytes, from, 0, nullptr, nullptr),
          "clEnqueueWriteBuffer");
}

void Session::read(const Buffer &buffer, void *to, size_t bytes) const {
    check(clEnqueueReadBuffer(queue_.get(), buffer.get(), CL_TRUE, 0, bytes, to, 0, nullptr, nullptr),
          "clEnqueueReadBuffer");
}

Kernel Session::kernel(const std::string &source, const std::string &options, const char *name) const {
    cl_int code = CL_SUCCESS;
    const char *text = source.c_str();
    Program program(clCreateProgramWithSource(context_.get(), 1, &text, nullptr, &code));
    check(code, "clCreateProgramWithSource");
    code = clBuildProgram(program.get(), 1, &device_, options.c_str(), nullptr, nullptr);
    if (code != CL_SUCCESS) {
        size_t length = 0;
        clGetProgramBuildInfo(program.get(), device_, CL_PROGRAM_BUILD_LOG, 0, nullptr, &length);
        std::string log(length, '\0');
        clGetProgramBuildInfo(program.get(), device_, CL_PROGRAM_BUILD_LOG, length, log.data(), nullptr);
        throw OpenClError(std::string("compiling kernel ") + name + "\n" + log + "\nclBuildProgram", code);
    }
    // The kernel keeps the program alive.
    Kernel made(clCreateKernel(program.get(), name, &code));
    check(code, "clCreateKernel");
    return made;
}

double Session::run(const Kernel &kernel, size_t items) const {
    cl_event raw = nullptr;
    check(clEnqueueNDRangeKernel(queue_.get(), kernel.get(), 1, nullptr, &items, nullptr, 0, nullptr, &raw),
          "clEnqueueNDRangeKernel");
    Event event(raw);
    check(clWaitForEvents(1, &raw), "clWaitForEvents");
    cl_ulong begin = 0, end = 0;
    check(clGetEventProfilingInfo(raw, CL_PROFILING_COMMAND_START, sizeof begin, &begin, nullptr),
          "clGetEventProfilingInfo");
    check(clGetEventProfilingInfo(raw, CL_PROFILING_COMMAND_END, sizeof end, &end, nullptr),
          "clGetEventProfilingInfo");
    // A clock that did not move would make the rate infinite; a nanosecond is below every real clock's step.
    return static_cast<double>(std::max<cl_ulong>(end - begin, 1)) * 1e-9;
}

} // namespace fy
