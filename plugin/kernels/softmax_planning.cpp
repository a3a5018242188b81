// Planning. In: MaskedSoftmaxParams and a device's traits. Out: SoftmaxPlan.
#include "softmax_plan.h"

namespace attngraft
{
namespace
{

bool hasTensors(MaskedSoftmaxParams const& params)
{
    size_t const size = elementSize(params.type);
    bool const isInPlace = params.scores == params.probabilities;
    bool isConsistent = params.scoresStrides[kKeyDim] == 1 && params.probabilitiesStrides[kKeyDim] == 1;
    for (int d = 0; d < kMaxOuterRank; ++d)
    {
        bool const isAlike = params.dims[d] == 1 || params.scoresStrides[d] == params.probabilitiesStrides[d];
        isConsistent = isConsistent && (!isInPlace || isAlike);
    }
    return isConsistent && params.scores != nullptr && params.probabilities != nullptr && isAligned(params.scores, size)
        && isAligned(params.probabilities, size);
}

RowMap mergeDimensions(
    int64_t const (&dims)[kMaxRank], int64_t const (&first)[kMaxRank], int64_t const (&second)[kMaxRank])
{
    RowMap merged;
    for (int d = 0; d < kMaxOuterRank; ++d)
    {
        if (dims[d] == 1)
        {
            continue;
        }
        int const last = merged.rank - 1;
        bool const inStep = merged.rank > 0 && merged.firstStrides[last] == first[d] * dims[d]
            && merged.secondStrides[last] == second[d] * dims[d];
        int const target = inStep ? last : merged.rank++;
        merged.dims[target] = Divisor(inStep ? merged.dims[target].value * dims[d] : dims[d]);
        merged.firstStrides[target] = first[d];
        merged.secondStrides[target] = second[d];
    }
    return merged;
}

Extent extentOf(
    void const* data, int64_t const (&dims)[kMaxRank], int64_t const (&strides)[kMaxRank], int64_t elementBytes)
{
    int64_t before = 0;
    int64_t behind = 1;
    for (int d = 0; d < kMaxRank; ++d)
    {
        int64_t const reach = (dims[d] - 1) * strides[d];
        (reach < 0 ? before : behind) += reach;
    }
    auto const* const bytes = static_cast<uint8_t const*>(data);
    return {bytes + before * elementBytes, bytes + behind * elementBytes};
}

//! Every row of the tensor begins on a vector of `vectorElements` elements and walks through them one by one.
bool isVectorwise(void const* data, int64_t const (&dims)[kMaxRank], int64_t const (&strides)[kMaxRank],
    int64_t vectorElements, int64_t elementBytes)
{
    bool vectorwise = strides[kKeyDim] == 1 && isAligned(data, static_cast<size_t>(vectorElements * elementBytes));
    for (int d = 0; d < kMaxOuterRank; ++d)
    {
        vectorwise = vectorwise && (dims[d] == 1 || strides[d] % vectorElements == 0);
    }
    return vectorwise;
}

MaskTensors chooseTensors(SoftmaxPlan const& plan, DataType type)
{
    if (plan.bias == nullptr && plan.keep == nullptr && plan.scaleIsDeferred)
    {
        return MaskTensors::kNone;
    }
    if (!plan.isWhole && plan.keys <= kElementKeys)
    {
        return MaskTensors::kAny;
    }
    if (plan.bias == nullptr && plan.scaleIsDeferred && plan.keepType == KeepType::kInt8 && plan.keepKeyStride == 1)
    {
        return MaskTensors::kKeepBytes;
    }
    bool const biasHasType = plan.biasIsFloat32 == (type == DataType::kFloat32);
    if (plan.bias != nullptr && plan.keep == nullptr && !plan.scoreMap.isCapped() && biasHasType
        && plan.biasKeyStride == 1)
    {
        return MaskTensors::kBias;
    }
    return MaskTensors::kAny;
}

void planTensors(MaskedSoftmaxParams const& params, SoftmaxPlan& plan)
{
    auto const size = static_cast<int64_t>(elementSize(params.type));
    int64_t const perVector = kVectorBytes / size;
    plan.scores = params.scores;
    plan.probabilities = params.probabilities;
    plan.places = mergeDimensions(params.dims, params.scoresStrides, params.probabilitiesStrides);
    plan.scoresExtent = extentOf(params.scores, params.dims, params.scoresStrides, size);
    plan.isWhole = plan.keys % perVector == 0
        && isVectorwise(params.scores, params.dims, params.scoresStrides, perVector, size)
        && isVectorwise(params.probabilities, params.dims, params.probabilitiesStrides, perVector, size);
}

void planMasks(MaskedSoftmaxParams const& params, SoftmaxPlan& plan)
{
    auto const size = static_cast<int64_t>(elementSize(params.type));
    int64_t const perVector = kVectorBytes / size;
    plan.masks = mergeDimensions(params.dims, params.bias.strides, params.keep.strides);
    plan.bias = params.bias.data;
    plan.biasKeyStride = params.bias.strides[kKeyDim];
    plan.biasIsFloat32 = params.biasIsFloat32 || params.type == DataType::kFloat32;
    plan.keep = params.keep.data;
    plan.keepKeyStride = params.keep.strides[kKeyDim];
    plan.keepType = params.keepType;
    plan.scaleIsDeferred = plan.bias == nullptr && plan.scoreMap.isPositiveFactor();
    plan.tensors = chooseTensors(plan, params.type);
    if (plan.tensors == MaskTensors::kKeepBytes || plan.tensors == MaskTensors::kBias)
    {
        bool const isKeep = plan.tensors == MaskTensors::kKeepBytes;
        BroadcastTensor const& mask = isKeep ? params.keep : params.bias;
        int64_t const bytes = isKeep ? 1 : size;
        plan.maskExtent = extentOf(mask.data, params.dims, mask.strides, bytes);
        auto const piece = static_cast<size_t>(perVector * bytes);
        plan.maskEndsInPieces = isAligned(plan.maskExtent.low, piece) && isAligned(plan.maskExtent.high, piece);
        plan.maskIsWhole = plan.isWhole && isVectorwise(mask.data, params.dims, mask.strides, perVector, bytes);
    }
}

//! See SoftmaxWork.
bool isEven(SoftmaxPlan const& plan, size_t elementBytes)
{
    constexpr int64_t kNear = int64_t{1} << 30; // that distances of masks in bytes are ints
    int64_t const perVector = kVectorBytes / static_cast<int64_t>(elementBytes);
    auto const apart = reinterpret_cast<uintptr_t>(plan.scores) - reinterpret_cast<uintptr_t>(plan.probabilities);
    int64_t const stride = plan.places.firstStrides[0];
    bool const areAlike = plan.places.rank == 0
        || (plan.places.rank == 1 && stride > 0 && (stride - plan.places.secondStrides[0]) % perVector == 0);
    return areAlike && apart % kVectorBytes == 0 && plan.maskExtent.high - plan.maskExtent.low < kNear
        && plan.tensors != MaskTensors::kAny && plan.rows < kShortDividends && plan.emptyRows != EmptyRows::kUnmasked;
}

} // namespace

bool makeSoftmaxPlan(MaskedSoftmaxParams const& params, SoftmaxDevice const& device, SoftmaxPlan& plan)
{
    int64_t const elements = countElements(params.dims);
    if (elements < 0 || !isSupported(params.type) || !areMasksInContract(params, kKeyDim))
    {
        return false;
    }
    plan = SoftmaxPlan{};
    if (elements == 0)
    {
        return true;
    }
    if (!hasTensors(params))
    {
        return false;
    }
    plan.keys = params.dims[kKeyDim];
    plan.rows = elements / plan.keys;
    plan.rowsPerBatch = Divisor(plan.rows / params.dims[0]);
    plan.queries = Divisor(params.dims[kQueryDim]);
    plan.interval = intervalMask(params, params.dims[kQueryDim], plan.keys);
    plan.scoreMap = ScoreMap{params.scale, params.softcap};
    plan.emptyRows = params.emptyRows;
    planTensors(params, plan);
    planMasks(params, plan);
    size_t const size = elementSize(params.type);
    SoftmaxWork const work{plan.rows, plan.keys, size, plan.isWhole, plan.tensors, isEven(plan, size),
        plan.interval.excludesKeys(), plan.maskIsWhole || plan.tensors == MaskTensors::kNone};
    plan.policy = choosePolicy(work, device);
    plan.blocks = Divisor(plan.policy.blocks);
    int64_t const units =
        plan.policy.strategy == Strategy::kElements ? plan.keys : vectorsOfRow(plan.keys, size, plan.isWhole);
    plan.unitsPerBlock = (units + plan.policy.blocks - 1) / plan.policy.blocks;
    return true;
}

} // namespace attngraft
