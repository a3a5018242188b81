// What both operators ask of PyTorch's tensors. Each function that can refuse throws std::runtime_error that names the
// tensor and says what was expected of it.
#pragma once

#include "operands.h"

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

namespace attngraft::torch_library
{

using torch::stable::Tensor;

[[noreturn]] void refuse(char const* tensor, std::string const& reason);

void require(bool condition, char const* tensor, char const* expected);

void requireSizes(Tensor const& tensor, char const* name, std::initializer_list<int64_t> sizes);

//! `firstName` is what the tensor `first`, whose device is wanted, is called.
void requireDevice(Tensor const& tensor, char const* name, Tensor const& first, char const* firstName);

//! The kernels' name for the type of an operator's own tensor.
DataType dataType(Tensor const& tensor, char const* name);

//! The same tensor, or a copy of it where the elements along the last dimension are no neighbours, nor one and the same
//! where `orRepeated`.
Tensor withNeighbours(Tensor const& tensor, bool orRepeated);
std::optional<Tensor> withNeighbours(std::optional<Tensor> const& tensor, bool orRepeated);

} // namespace attngraft::torch_library
