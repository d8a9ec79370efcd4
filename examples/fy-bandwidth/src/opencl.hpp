// A thin layer over the OpenCL C interface: every handle is released, every error names the call that made it.
#pragma once

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace fy {

// A call of the OpenCL interface that failed.
struct OpenClError : std::runtime_error {
    OpenClError(const std::string &call, cl_int code);
};

// Throws `OpenClError` unless `code` means success.
void check(cl_int code, const char *call);

template <typename Handle, cl_int (*Release)(Handle)> struct Releaser {
    void operator()(Handle handle) const { Release(handle); }
};
template <typename Handle, cl_int (*Release)(Handle)>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Releaser<Handle, Release>>;

using Context = Owned<cl_context, clReleaseContext>;
using Queue = Owned<cl_command_queue, clReleaseCommandQueue>;
using Buffer = Owned<cl_mem, clReleaseMemObject>;
using Program = Owned<cl_program, clReleaseProgram>;
using Kernel = Owned<cl_kernel, clReleaseKernel>;
using Event = Owned<cl_event, clReleaseEvent>;

// A device and what it says of itself.
struct Device {
    cl_platform_id platform;
    cl_device_id id;
    cl_device_type type;
    std::string platform_name;
    std::string name;
    std::string driver;
    cl_ulong max_allocation;

    // A CPU behind an OpenCL driver stands in for a GPU and is labelled so wherever it shows.
    bool simulated() const { return (type & CL_DEVICE_TYPE_CPU) != 0; }
};

// All devices of all platforms: GPUs first, then accelerators, then CPUs, else in the loader's order.
std::vector<Device> devices();

// One device with a queue that measures time.
class Session {
  public:
    explicit Session(const Device &device);

    Buffer buffer(cl_mem_flags flags, size_t bytes) const;
    void write(const Buffer &buffer, const void *from, size_t bytes) const;
    void read(const Buffer &buffer, void *to, size_t bytes) const;
    // Compiles `source`; a compile error carries the compiler's log.
    Kernel kernel(const std::string &source, const std::string &options, const char *name) const;
    // Runs a kernel over `items` work items and returns the seconds that the device was busy with it.
    double run(const Kernel &kernel, size_t items) const;

  private:
    cl_device_id device_;
    Context context_;
    Queue queue_;
};

} // namespace fy
