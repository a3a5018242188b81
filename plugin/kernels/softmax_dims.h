// The dimensions of softmax parameters, forward and backward: [d0, d1, d2, d3, Sq, Sk]. Scores of a lower rank have
// ones after the batch dimension; those of rank 2 are a batch of one.
#pragma once

#include "operands.h"

#include <cstdint>
#include <limits>

namespace attngraft
{

constexpr int kQueryDim = kMaxRank - 2;
constexpr int kKeyDim = kMaxRank - 1;
constexpr int kMaxOuterRank = kMaxRank - 1; //!< every dimension but the keys

//! Where dimension `dim` of scores of rank `rank` lies in `dims`: the batch in front, the others right-aligned, ones
//! between.
constexpr int64_t softmaxDimension(int64_t dim, int64_t rank)
{
    bool const isBatch = dim == 0 && rank > kMinScoreRank;
    return isBatch ? 0 : kMaxRank - rank + dim;
}

//! `dims` of scores of rank `rank`; `sizeOf(i)` is the size of their dimension i.
template <typename SizeOf>
void setDims(int64_t (&dims)[kMaxRank], int64_t rank, SizeOf const& sizeOf)
{
    for (int64_t& dim : dims)
    {
        dim = 1;
    }
    for (int64_t dim = 0; dim < rank; ++dim)
    {
        dims[softmaxDimension(dim, rank)] = sizeOf(dim);
    }
}

//! Strides of an operand, one for each dimension of scores of rank `rank`, moved to where these lie.
inline BroadcastTensor spreadOverScores(BroadcastTensor const& operand, int64_t rank)
{
    BroadcastTensor tensor;
    tensor.data = operand.data;
    for (int64_t dim = 0; dim < rank; ++dim)
    {
        tensor.strides[softmaxDimension(dim, rank)] = operand.strides[dim];
    }
    return tensor;
}

//! The same for both masks of `params`.
inline void spreadMasks(MaskParams& params, int64_t rank)
{
    params.bias = spreadOverScores(params.bias, rank);
    params.keep = spreadOverScores(params.keep, rank);
}

//! Number of elements, or -1 when a dimension is negative or the product does not fit.
inline int64_t countElements(int64_t const (&dims)[kMaxRank])
{
    bool isEmpty = false;
    for (int64_t const dim : dims)
    {
        if (dim < 0)
        {
            return -1;
        }
        isEmpty = isEmpty || dim == 0;
    }
    if (isEmpty)
    {
        return 0;
    }
    int64_t count = 1;
    for (int64_t const dim : dims)
    {
        if (count > std::numeric_limits<int64_t>::max() / dim)
        {
            return -1;
        }
        count *= dim;
    }
    return count;
}

} // namespace attngraft
