// Planning and dispatch by type. In: MaskedSoftmaxParams. Out: one launch.
#include "masked_softmax.h"

#include "softmax_kernels.h"
#include "softmax_plan.h"

#include <cmath>
#include <limits>

namespace attngraft
{
namespace
{

constexpr int kQueryDim = kMaxRank - 2;
constexpr int kKeyDim = kMaxRank - 1;

//! Number of elements, or -1 when a dimension is negative or the product does not fit.
int64_t countElements(int64_t const (&dims)[kMaxRank])
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

bool isInContract(MaskedSoftmaxParams const& params)
{
    return isSupported(params.type) && std::isfinite(params.scale) && std::isfinite(params.softcap)
        && params.softcap >= 0.F && params.windowLeft >= -1 && params.windowRight >= -1
        && hasKeysTogether(params.bias, kKeyDim) && hasKeysTogether(params.keep, kKeyDim);
}

RowOffsets mergeDimensions(MaskedSoftmaxParams const& params)
{
    RowOffsets merged;
    for (int d = 0; d < kMaxOuterRank; ++d)
    {
        int64_t const dim = params.dims[d];
        if (dim == 1)
        {
            continue;
        }
        int64_t const bias = params.bias.strides[d];
        int64_t const keep = params.keep.strides[d];
        int const last = merged.rank - 1;
        bool const inStep =
            merged.rank > 0 && merged.biasStrides[last] == bias * dim && merged.keepStrides[last] == keep * dim;
        int const target = inStep ? last : merged.rank++;
        merged.dims[target] = Divisor(inStep ? merged.dims[target].value * dim : dim);
        merged.biasStrides[target] = bias;
        merged.keepStrides[target] = keep;
    }
    return merged;
}

//! Every row of the tensor begins on a vector of `vectorElements` elements and walks through them one by one.
bool isVectorwise(void const* data, int64_t keyStride, int64_t const (&strides)[kMaxOuterRank], int64_t vectorElements,
    int64_t elementBytes)
{
    bool vectorwise = keyStride == 1 && isAligned(data, vectorElements * elementBytes);
    for (int64_t const stride : strides)
    {
        vectorwise = vectorwise && stride % vectorElements == 0;
    }
    return vectorwise;
}

MaskTensors chooseTensors(SoftmaxPlan const& plan, DataType type)
{
    auto const size = static_cast<int64_t>(elementSize(type));
    int64_t const perVector = kVectorBytes / size;
    bool const inVectors = plan.policy.strategy == Strategy::kVectors;
    if (plan.bias == nullptr && plan.keep == nullptr && plan.scaleIsDeferred)
    {
        return MaskTensors::kNone;
    }
    if (inVectors && plan.bias == nullptr && plan.scaleIsDeferred && plan.keepType == KeepType::kInt8
        && isVectorwise(plan.keep, plan.keepKeyStride, plan.offsets.keepStrides, perVector, 1))
    {
        return MaskTensors::kKeepBytes;
    }
    bool const biasHasType = plan.biasIsFloat32 == (type == DataType::kFloat32);
    if (inVectors && plan.bias != nullptr && plan.keep == nullptr && !plan.scoreMap.isCapped() && biasHasType
        && isVectorwise(plan.bias, plan.biasKeyStride, plan.offsets.biasStrides, perVector, size))
    {
        return MaskTensors::kBias;
    }
    return MaskTensors::kAny;
}

} // namespace

bool makeSoftmaxPlan(MaskedSoftmaxParams const& params, SoftmaxPlan& plan)
{
    int64_t const elements = countElements(params.dims);
    size_t const size = elementSize(params.type);
    if (elements < 0 || !isInContract(params))
    {
        return false;
    }
    plan = SoftmaxPlan{};
    if (elements == 0)
    {
        return true;
    }
    if (params.scores == nullptr || params.probabilities == nullptr || !isAligned(params.scores, size)
        || !isAligned(params.probabilities, size))
    {
        return false;
    }
    plan.scores = params.scores;
    plan.probabilities = params.probabilities;
    plan.keys = params.dims[kKeyDim];
    plan.rows = elements / plan.keys;
    plan.rowsPerBatch = Divisor(plan.rows / params.dims[0]);
    plan.queries = Divisor(params.dims[kQueryDim]);
    plan.interval = IntervalMask{params.dims[kQueryDim], plan.keys, params.causal, params.windowLeft,
        params.windowRight, params.kvLengths, params.kvStarts};
    plan.scoreMap = ScoreMap{params.scale, params.softcap};
    plan.emptyRows = params.emptyRows;

    plan.offsets = mergeDimensions(params);
    plan.bias = params.bias.data;
    plan.biasKeyStride = params.bias.strides[kKeyDim];
    plan.biasIsFloat32 = params.biasIsFloat32 || params.type == DataType::kFloat32;
    plan.keep = params.keep.data;
    plan.keepKeyStride = params.keep.strides[kKeyDim];
    plan.keepType = params.keepType;
    plan.scaleIsDeferred = plan.bias == nullptr && plan.scoreMap.isPositiveFactor();

    auto const remainder = [](void const* pointer) { return reinterpret_cast<uintptr_t>(pointer) % kVectorBytes; };
    bool const equallyAligned = remainder(plan.scores) == remainder(plan.probabilities);
    bool const rowsBeginOnVectors =
        equallyAligned && remainder(plan.scores) == 0 && plan.keys * static_cast<int64_t>(size) % kVectorBytes == 0;
    plan.policy = choosePolicy(plan.keys, size, rowsBeginOnVectors, equallyAligned);
    plan.tensors = chooseTensors(plan, params.type);
    return true;
}

cudaError_t launchMaskedSoftmax(MaskedSoftmaxParams const& params, cudaStream_t stream)
{
    SoftmaxPlan plan;
    if (!makeSoftmaxPlan(params, plan))
    {
        return cudaErrorInvalidValue;
    }
    if (plan.rows == 0)
    {
        return cudaSuccess;
    }
    switch (params.type)
    {
    case DataType::kFloat32: return launchSoftmaxFloat32(plan, stream);
    case DataType::kFloat16: return launchSoftmaxFloat16(plan, stream);
    case DataType::kBFloat16: return launchSoftmaxBFloat16(plan, stream);
    }
    return cudaErrorInvalidValue;
}

} // namespace attngraft
