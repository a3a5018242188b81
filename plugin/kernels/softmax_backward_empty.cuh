// Rows that are uniform because they have no allowed key: their probabilities depend on no score.
// In: whether all probabilities of a row are 1/K, which they seldom are; only then are masks and scores looked at.
#pragma once

#include "softmax_backward_vectors.cuh"

namespace attngraft
{

//! 1/K as the row's type has it.
template <typename T>
ATTNGRAFT_DEVICE float evenProbability(SoftmaxBackwardPlan const& plan)
{
    return widened(rounded<T>(1.F / static_cast<float>(plan.keys)));
}

template <typename T>
ATTNGRAFT_DEVICE float numberAt(void const* data, int64_t index)
{
    return widened(static_cast<T const*>(data)[index]);
}

ATTNGRAFT_DEVICE bool keepAt(void const* data, int64_t index, KeepType type)
{
    switch (type)
    {
    case KeepType::kInt8: return static_cast<int8_t const*>(data)[index] != 0;
    case KeepType::kInt32: return static_cast<int32_t const*>(data)[index] != 0;
    case KeepType::kInt64: return static_cast<int64_t const*>(data)[index] != 0;
    }
    return false;
}

//! Whether one of every `step` keys from `first` on is allowed. Reads until it finds one.
template <typename T>
ATTNGRAFT_DEVICE bool findsAllowedKey(AllowedKeys const& allowed, int64_t row, int64_t first, int64_t step)
{
    int64_t const keys = allowed.dims[kKeyDim];
    int64_t bias = 0;
    int64_t keep = 0;
    int64_t indices[kMaxOuterRank];
    int64_t rest = row;
#pragma unroll
    for (int dim = kMaxOuterRank - 1; dim >= 0; --dim)
    {
        indices[dim] = rest % allowed.dims[dim];
        rest /= allowed.dims[dim];
        bias += indices[dim] * allowed.bias.strides[dim];
        keep += indices[dim] * allowed.keep.strides[dim];
    }
    KeyInterval const interval = allowed.interval.row(indices[0], indices[kMaxOuterRank - 1]);
    for (int64_t key = interval.begin + first; key < interval.end; key += step)
    {
        if (allowed.keep.data != nullptr
            && !keepAt(allowed.keep.data, keep + key * allowed.keep.strides[kKeyDim], allowed.keepType))
        {
            continue;
        }
        int64_t const at = bias + key * allowed.bias.strides[kKeyDim];
        float const added = allowed.bias.data == nullptr ? 0.F
            : allowed.biasIsFloat32                      ? numberAt<float>(allowed.bias.data, at)
                                                         : numberAt<T>(allowed.bias.data, at);
        if (allowed.scoreMap(numberAt<T>(allowed.scores, row * keys + key), added) != -INFINITY)
        {
            return true;
        }
    }
    return false;
}

//! 0 for a row without any allowed key, else 1. Called by all threads, of which each says whether it holds a
//! probability other than 1/K.
template <typename T, int threads, bool isClustered>
ATTNGRAFT_DEVICE float weighOfRow(SoftmaxBackwardPlan const& plan, int64_t row, bool isUneven, int64_t lane, int blocks)
{
    float const uneven = sumOverRow<threads, isClustered>(isUneven ? 1.F : 0.F, kUnequal, blocks);
    bool const isAllowed = uneven != 0.F || findsAllowedKey<T>(plan.allowed, row, lane, int64_t{blocks} * threads);
    float const found = sumOverRow<threads, isClustered>(isAllowed ? 1.F : 0.F, kAllowed, blocks);
    return found != 0.F ? 1.F : 0.F;
}

} // namespace attngraft
