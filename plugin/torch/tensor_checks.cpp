#include "tensor_checks.h"

#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/core/ScalarType.h>

#include <stdexcept>

namespace attngraft::torch_library
{
namespace
{

using torch::headeronly::ScalarType;

bool hasNeighbours(Tensor const& tensor, bool orRepeated)
{
    int64_t const last = tensor.dim() - 1;
    return last < 0 || tensor.size(last) <= 1 || tensor.stride(last) == 1 || (orRepeated && tensor.stride(last) == 0);
}

} // namespace

void refuse(char const* tensor, std::string const& reason)
{
    throw std::runtime_error(std::string(tensor) + ": " + reason);
}

void require(bool condition, char const* tensor, char const* expected)
{
    if (!condition)
    {
        refuse(tensor, std::string("expected ") + expected);
    }
}

void requireSizes(Tensor const& tensor, char const* name, std::initializer_list<int64_t> sizes)
{
    bool matches = tensor.dim() == static_cast<int64_t>(sizes.size());
    std::string expected;
    int64_t dim = 0;
    for (int64_t const size : sizes)
    {
        matches = matches && tensor.size(dim++) == size;
        expected += (expected.empty() ? "" : ", ") + std::to_string(size);
    }
    require(matches, name, ("shape [" + expected + "]").c_str());
}

void requireDevice(Tensor const& tensor, char const* name, Tensor const& first, char const* firstName)
{
    require(tensor.device() == first.device(), name, (std::string("the device of ") + firstName).c_str());
}

DataType dataType(Tensor const& tensor, char const* name)
{
    switch (tensor.scalar_type())
    {
    case ScalarType::Float: return DataType::kFloat32;
    case ScalarType::Half: return DataType::kFloat16;
    case ScalarType::BFloat16: return DataType::kBFloat16;
    default: refuse(name, "expected float32, float16 or bfloat16");
    }
}

Tensor withNeighbours(Tensor const& tensor, bool orRepeated)
{
    return hasNeighbours(tensor, orRepeated) ? tensor : torch::stable::contiguous(tensor);
}

std::optional<Tensor> withNeighbours(std::optional<Tensor> const& tensor, bool orRepeated)
{
    return tensor ? std::optional<Tensor>(withNeighbours(*tensor, orRepeated)) : std::nullopt;
}

} // namespace attngraft::torch_library
