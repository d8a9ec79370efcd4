// The two measurements. Each checks what the device computed against the CPU before it gives a figure.
#pragma once

#include "opencl.hpp"

#include <string>

namespace fy {

// The device computed something else than the CPU.
struct WrongResult : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Best of several copies of `bytes` bytes, in GB/s, counting bytes read and bytes written.
double copy_bandwidth(const Session &session, const std::string &source, size_t bytes);

// Best of several runs of fused multiply-adds, in GFLOP/s, counting two operations each.
double fma_throughput(const Session &session, const std::string &source);

} // namespace fy
