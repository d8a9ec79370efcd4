#include "measure.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace fy {

namespace {

constexpr int kRepeats = 5;
constexpr int kRounds = 256;
constexpr int kChains = 8;
constexpr float kFactor = 1.0f - 1.0f / 1024.0f;
constexpr float kAddend = 1.0f / 512.0f;
// The work grows until one run takes this long, so that a fast device is measured and a slow one is not punished.
constexpr double kLongEnough = 0.03;
constexpr size_t kFewestItems = size_t{1} << 13;
constexpr size_t kMostItems = size_t{1} << 25;

// A value that differs from its neighbours, exact in a float.
float pattern(size_t i) { return static_cast<float>((i * 2654435761u) & 0xFFFFFFu); }

void argument(const Kernel &kernel, cl_uint index, size_t size, const void *value) {
    check(clSetKernelArg(kernel.get(), index, size, value), "clSetKernelArg");
}

void argument(const Kernel &kernel, cl_uint index, const Buffer &buffer) {
    cl_mem handle = buffer.get();
    argument(kernel, index, sizeof handle, &handle);
}

// What one work item of kernels/fma.cl hands back.
float expected_sum(size_t item) {
    const float seed = static_cast<float>(item % 1024) / 1024.0f;
    float chain[kChains];
    for (int k = 0; k < kChains; ++k) chain[k] = seed + static_cast<float>(k);
    for (int round = 0; round < kRounds; ++round)
        for (float &value : chain) value = std::fma(value, kFactor, kAddend);
    return ((chain[0] + chain[1]) + (chain[2] + chain[3])) + ((chain[4] + chain[5]) + (chain[6] + chain[7]));
}

} // namespace

double copy_bandwidth(const Session &session, const std::string &source, size_t bytes) {
    const size_t items = bytes / 16;
    const size_t floats = items * 4;
    std::vector<float> sent(floats), received(floats, -1.0f);
    for (size_t i = 0; i < floats; ++i) sent[i] = pattern(i);

    const Buffer from = session.buffer(CL_MEM_READ_ONLY, floats * sizeof(float));
    const Buffer to = session.buffer(CL_MEM_WRITE_ONLY, floats * sizeof(float));
    session.write(from, sent.data(), floats * sizeof(float));
    const Kernel kernel = session.kernel(source, "", "copy");
    argument(kernel, 0, from);
    argument(kernel, 1, to);

    session.run(kernel, items); // warms caches and page tables
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kRepeats; ++i) best = std::min(best, session.run(kernel, items));

    session.read(to, received.data(), floats * sizeof(float));
    for (size_t i = 0; i < floats; ++i)
        if (received[i] != sent[i])
            throw WrongResult("copy: element " + std::to_string(i) + " is " + std::to_string(received[i]) +
                              ", the CPU says " + std::to_string(sent[i]));
    return 2.0 * static_cast<double>(floats * sizeof(float)) / best / 1e9;
}

double fma_throughput(const Session &session, const std::string &source) {
    const Kernel kernel = session.kernel(source, "-DROUNDS=" + std::to_string(kRounds), "fused_multiply_add");
    size_t items = kFewestItems;
    Buffer sums;
    double seconds = 0.0;
    for (;; items *= 2) {
        sums = session.buffer(CL_MEM_WRITE_ONLY, items * sizeof(float));
        argument(kernel, 0, sums);
        argument(kernel, 1, sizeof kFactor, &kFactor);
        argument(kernel, 2, sizeof kAddend, &kAddend);
        seconds = session.run(kernel, items);
        if (seconds >= kLongEnough || items >= kMostItems) break;
    }
    for (int i = 1; i < kRepeats; ++i) seconds = std::min(seconds, session.run(kernel, items));

    std::vector<float> received(items);
    session.read(sums, received.data(), items * sizeof(float));
    // Seeds repeat every 1024 items: one period is computed here, every item is compared with it.
    std::vector<float> expected(1024);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = expected_sum(i);
    for (size_t i = 0; i < items; ++i) {
        const float want = expected[i % 1024];
        if (!(std::fabs(received[i] - want) <= 1e-5f * std::fabs(want)))
            throw WrongResult("fma: item " + std::to_string(i) + " is " + std::to_string(received[i]) +
                              ", the CPU says " + std::to_string(want));
    }
    return static_cast<double>(items) * kRounds * kChains * 2.0 / seconds / 1e9;
}

} // namespace fy
