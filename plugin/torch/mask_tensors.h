// The contract's roles and attributes as PyTorch gives them, and the part of either operator's parameters that they
// make.
#pragma once

#include "tensor_checks.h"

#include <vector>

namespace attngraft::torch_library
{

struct MaskTensors
{
    std::optional<Tensor> bias;
    std::optional<Tensor> keep;
    std::optional<Tensor> kvLengths;
    std::optional<Tensor> kvStarts;
};

//! The contract's attributes; `causal` and `emptyRows` are positions in its lists of words.
struct MaskScalars
{
    double scale;
    int64_t causal;
    int64_t windowLeft;
    int64_t windowRight;
    double softcap;
    int64_t emptyRows;
};

//! The scores that masks lie on: their dimensions, and a tensor, called `name` in messages, of their type and device.
struct ScoresView
{
    std::vector<int64_t> dims;
    Tensor tensor;
    char const* name;
};

ScoresView viewOf(Tensor const& scores, char const* name);

//! Throws std::runtime_error unless the masks are what the contract says of their roles.
void checkMasks(MaskTensors const& masks, ScoresView const& scores);

//! Throws std::runtime_error unless the positions are in the contract's lists.
void checkScalars(MaskScalars const& scalars);

//! The same masks in a form that the kernels read, see withNeighbours.
MaskTensors readable(MaskTensors const& masks);

//! A stride for each dimension of scores of rank `rank`, first to last.
BroadcastTensor broadcastTensor(Tensor const& mask, int64_t rank);

bool isFloat32(Tensor const& tensor);

//! Masks and attributes, both checked, in the parameters of either operator. `rank` is the scores'.
void setMask(MaskParams& params, MaskTensors const& masks, MaskScalars const& scalars, int64_t rank);

} // namespace attngraft::torch_library
