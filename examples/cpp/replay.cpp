// Runs an engine out of a bundle that `attngraft bundle ENGINE --format directory -o DIR` made: one plain run at the
// profile's usual shapes, the same captured into a CUDA graph, and replays of that, timed. The inputs are made up.
//
//   attngraft_replay DIR [REPLAYS]
//
// TensorRT is opened at run time: libnvinfer.so.MAJOR of the headers compiled with, or what $TENSORRT_LIBRARY names.
#include <NvInferRuntime.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

using namespace nvinfer1;
namespace fs = std::filesystem;

static void require(bool isFine, std::string const& otherwise)
{
    if (!isFine)
    {
        throw std::runtime_error(otherwise);
    }
}

static void check(cudaError_t status, char const* what)
{
    if (status != cudaSuccess)
    {
        throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
    }
}

class Logger final : public ILogger
{
public:
    void log(Severity severity, char const* message) noexcept override
    {
        if (severity <= Severity::kWARNING)
        {
            std::fprintf(stderr, "TensorRT: %s\n", message);
        }
    }
};

//! A function of TensorRT, which is opened at the first call and never closed.
template <typename Function>
static Function* tensorRt(char const* name)
{
    char const* const given = std::getenv("TENSORRT_LIBRARY");
    std::string const library = given != nullptr ? given : "libnvinfer.so." + std::to_string(NV_TENSORRT_MAJOR);
    void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
    void* const function = handle != nullptr ? dlsym(handle, name) : nullptr;
    require(function != nullptr, function == nullptr ? dlerror() : "");
    return reinterpret_cast<Function*>(function);
}

static int64_t byteCount(DataType type, Dims const& shape, std::string const& name)
{
    static constexpr int kBits[]{32, 16, 8, 32, 8, 8, 8, 16, 64, 4}; // kFLOAT to kINT4, in the order of DataType
    require(static_cast<size_t>(type) < std::size(kBits), name + ": is of a type that is unknown here");
    int64_t bits = kBits[static_cast<size_t>(type)];
    for (int32_t axis = 0; axis < shape.nbDims; ++axis)
    {
        require(shape.d[axis] >= 0, name + ": its shape depends on data, which a graph cannot serve");
        bits *= shape.d[axis];
    }
    return std::max<int64_t>((bits + 7) / 8, 1);
}

//! Floating-point numbers of 1/2 to 1 and either sign, else ones, which are legal as ids and in masks. With zeros a GPU
//! would be faster than it is.
static std::vector<uint8_t> madeUp(DataType type, int64_t bytes)
{
    struct Element
    {
        int64_t size;
        uint64_t drawn; //!< bits of it
        uint64_t set;
    };
    static constexpr Element kElements[]{{4, 0x807FFFFF, 0x3F000000}, {2, 0x83FF, 0x3800}, {1, 0, 1}, {4, 0, 1},
        {1, 0, 1}, {1, 0, 1}, {1, 0, 0x38}, {2, 0x807F, 0x3F00}, {8, 0, 1}, {1, 0, 0x11}}; // as kBits
    Element const element = kElements[static_cast<size_t>(type)];
    std::vector<uint8_t> values(static_cast<size_t>(bytes));
    std::mt19937_64 draw;
    for (int64_t at = 0; at + element.size <= bytes; at += element.size)
    {
        uint64_t const bits = (draw() & element.drawn) | element.set; // the lowest byte first, as GPUs have it
        std::memcpy(&values[static_cast<size_t>(at)], &bits, static_cast<size_t>(element.size));
    }
    return values;
}

//! Gives every input its usual shape and made-up values, and every tensor a buffer, which stays until the process ends.
static void prepare(ICudaEngine const& engine, IExecutionContext& context)
{
    for (int32_t index = 0; index < engine.getNbIOTensors(); ++index)
    {
        char const* const name = engine.getIOTensorName(index);
        require(engine.getTensorIOMode(name) != TensorIOMode::kINPUT
                || context.setInputShape(name, engine.getProfileShape(name, 0, OptProfileSelector::kOPT)),
            std::string(name) + ": TensorRT refuses the profile's shape");
    }
    for (int32_t index = 0; index < engine.getNbIOTensors(); ++index)
    {
        char const* const name = engine.getIOTensorName(index);
        DataType const type = engine.getTensorDataType(name);
        int64_t const bytes = byteCount(type, context.getTensorShape(name), name);
        void* buffer = nullptr;
        check(cudaMalloc(&buffer, bytes), "cudaMalloc");
        check(cudaMemcpy(buffer, madeUp(type, bytes).data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
        require(context.setTensorAddress(name, buffer), std::string(name) + ": TensorRT refuses the buffer");
    }
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

static cudaGraphExec_t capture(IExecutionContext& context, cudaStream_t stream)
{
    require(
        context.enqueueV3(stream), "TensorRT reports an error in the plain run"); // its set-up is not to be captured
    check(cudaStreamSynchronize(stream), "the plain run");
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    bool const isCaptured = context.enqueueV3(stream);
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    require(isCaptured, "TensorRT reports an error while being captured");
    cudaGraphExec_t executable = nullptr;
    check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
    return executable;
}

static float millisecondsPerReplay(cudaGraphExec_t graph, cudaStream_t stream, int replays)
{
    cudaEvent_t start = nullptr, stop = nullptr;
    check(cudaEventCreate(&start), "cudaEventCreate");
    check(cudaEventCreate(&stop), "cudaEventCreate");
    check(cudaEventRecord(start, stream), "cudaEventRecord");
    for (int replay = 0; replay < replays; ++replay)
    {
        check(cudaGraphLaunch(graph, stream), "cudaGraphLaunch");
    }
    check(cudaEventRecord(stop, stream), "cudaEventRecord");
    check(cudaEventSynchronize(stop), "the replays");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start, stop), "cudaEventElapsedTime");
    return milliseconds / static_cast<float>(replays);
}

static void run(fs::path const& folder, int replays)
{
    fs::path const plan = folder / "model.engine", library = folder / "libattngraft.so";
    std::ifstream file(plan, std::ios::binary);
    require(
        file.is_open() && !fs::is_directory(plan), folder.string() + ": is no bundle, it has no model.engine to read");
    std::vector<char> const data((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    // Major * 10000 + minor * 100 + patch. All that is called here is in every TensorRT of one major.
    int32_t const version = tensorRt<int32_t()>("getInferLibVersion")();
    require(version / 10000 == NV_TENSORRT_MAJOR,
        "compiled for TensorRT " + std::to_string(NV_TENSORRT_MAJOR) + ", but found "
            + std::to_string(version / 10000));
    cudaStream_t stream = nullptr; // made first: TensorRT is not at its best where no GPU is
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    bool const isLibraryApart = fs::exists(library);
    require(
        !isLibraryApart || tensorRt<IPluginRegistry*()>("getPluginRegistry")()->loadLibrary(library.c_str()) != nullptr,
        library.string() + ": TensorRT cannot load the plugin library");
    Logger logger; // outlives the runtime, as that does the engine
    std::unique_ptr<IRuntime> const runtime(
        static_cast<IRuntime*>(tensorRt<void*(void*, int32_t)>("createInferRuntime_INTERNAL")(&logger, version)));
    require(runtime != nullptr, "TensorRT cannot start here");
    runtime->setEngineHostCodeAllowed(!isLibraryApart); // the engine may carry the library
    std::unique_ptr<ICudaEngine> const engine(runtime->deserializeCudaEngine(data.data(), data.size()));
    require(engine != nullptr, plan.string() + ": TensorRT cannot load it");
    std::unique_ptr<IExecutionContext> const context(engine->createExecutionContext());
    require(context != nullptr, plan.string() + ": TensorRT cannot prepare it to run");
    prepare(*engine, *context);
    cudaGraphExec_t const graph = capture(*context, stream);
    std::printf("%.4f ms a replay, mean of %d\n", millisecondsPerReplay(graph, stream, replays), replays);
    check(cudaGraphExecDestroy(graph), "cudaGraphExecDestroy");
    check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

int main(int argc, char** argv)
{
    try
    {
        int const replays = argc > 2 ? std::atoi(argv[2]) : 1000;
        require((argc == 2 || argc == 3) && replays > 0, "usage: attngraft_replay DIR [REPLAYS]");
        run(argv[1], replays);
    }
    catch (std::exception const& error)
    {
        std::fprintf(stderr, "attngraft_replay: error: %s\n", error.what());
        return 1;
    }
    return 0;
}
