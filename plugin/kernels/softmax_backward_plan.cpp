// Planning of the backward pass, on the host. See softmax_backward_plan.h.
#include "softmax_backward_plan.h"

#include <algorithm>
#include <iterator>

namespace attngraft
{
namespace
{

constexpr int64_t kScratchAlignment = 16;

//! Warps that keep a device busy in the bias's gradient. Not the device's own number: the order of summation depends on
//! it, and results should not differ from one device to the next.
constexpr int64_t kWantedWarps = 8192;
constexpr int64_t kRowsOfWarp = 16; //!< at least, before another block shares its sum
constexpr int kMostPartners = 8;    //!< warps of a block
constexpr int64_t kMostSplits = 1024;
constexpr int64_t kTileKeys = 128; //!< the fewest keys of a warp

bool searchesKeys(MaskedSoftmaxBackwardParams const& params)
{
    return params.emptyRows == EmptyRows::kUniform;
}

bool isInContract(MaskedSoftmaxBackwardParams const& params)
{
    int64_t const keyStride = params.biasGradientStrides[kKeyDim];
    return isSupported(params.type) && areMasksInContract(params, kKeyDim)
        && (params.biasGradient == nullptr || keyStride == 0 || keyStride == 1);
}

bool hasTensors(MaskedSoftmaxBackwardParams const& params)
{
    size_t const size = elementSize(params.type);
    auto const isThere = [size](void const* data) { return data != nullptr && isAligned(data, size); };
    bool const readsScores = params.softcap > 0.F || searchesKeys(params);
    return isThere(params.probabilities) && isThere(params.gradient) && isThere(params.scoresGradient)
        && (!readsScores || isThere(params.scores));
}

int64_t remainder(void const* pointer)
{
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer) % kVectorBytes);
}

//! The largest power of two that divides a number, kVectorBytes at most.
int64_t alignmentOf(int64_t bytes)
{
    int64_t alignment = kVectorBytes;
    while (bytes % alignment != 0)
    {
        alignment /= 2;
    }
    return alignment;
}

void planAlignment(MaskedSoftmaxBackwardParams const& params, int multiprocessors, SoftmaxBackwardPlan& plan)
{
    auto const size = static_cast<int64_t>(elementSize(params.type));
    int64_t const first = remainder(params.probabilities);
    plan.gradientIsInStep = remainder(params.gradient) == first;
    plan.scoresAreInStep = remainder(params.scores) == first;
    plan.resultIsInStep = remainder(params.scoresGradient) == first;
    int64_t const alignment = std::min(alignmentOf(first), alignmentOf(plan.keys * size));
    bool const isVectorwise = alignment == kVectorBytes && plan.gradientIsInStep && plan.resultIsInStep;
    plan.kind = plan.isCapped || plan.searchesKeys ? SoftmaxBackwardRows::kGeneral
        : isVectorwise                             ? SoftmaxBackwardRows::kVectorwise
                                                   : SoftmaxBackwardRows::kShifted;
    int64_t const vectors = softmaxBackwardVectors(plan.keys, static_cast<size_t>(size), alignment / size);
    plan.policy = chooseSoftmaxBackward(vectors, plan.rows, multiprocessors);
}

void planAllowedKeys(MaskedSoftmaxBackwardParams const& params, AllowedKeys& allowed)
{
    std::copy(std::begin(params.dims), std::end(params.dims), allowed.dims);
    allowed.interval = intervalMask(params, params.dims[kQueryDim], params.dims[kKeyDim]);
    allowed.scoreMap = ScoreMap{params.scale, params.softcap};
    allowed.scores = params.scores;
    allowed.bias = params.bias;
    allowed.biasIsFloat32 = params.biasIsFloat32;
    allowed.keep = params.keep;
    allowed.keepType = params.keepType;
}

void planRows(
    MaskedSoftmaxBackwardParams const& params, int64_t elements, int multiprocessors, SoftmaxBackwardPlan& plan)
{
    plan.probabilities = params.probabilities;
    plan.gradient = params.gradient;
    plan.scores = params.scores;
    plan.result = params.scoresGradient;
    plan.keys = params.dims[kKeyDim];
    plan.rows = elements / plan.keys;
    plan.scale = params.scale;
    plan.isCapped = params.softcap > 0.F;
    plan.innerScale = plan.isCapped ? params.scale / params.softcap : 0.F;
    plan.searchesKeys = searchesKeys(params);
    if (plan.searchesKeys)
    {
        planAllowedKeys(params, plan.allowed);
    }
    planAlignment(params, multiprocessors, plan);
}

//! Another dimension for the walk, within those before it. Neighbours in step become one.
void extend(RowWalk& walk, int64_t dim, int64_t rowStep, int64_t outStep)
{
    int const last = walk.rank - 1;
    bool const isInStep = walk.rank > 0 && walk.rowSteps[last] == rowStep * dim && walk.outSteps[last] == outStep * dim;
    int const target = isInStep ? last : walk.rank++;
    walk.dims[target] = isInStep ? walk.dims[target] * dim : dim;
    walk.rowSteps[target] = rowStep;
    walk.outSteps[target] = outStep;
}

void planWalks(MaskedSoftmaxBackwardParams const& params, int64_t elements, BiasGradientPlan& plan)
{
    plan.resultRows = 1;
    plan.summedRows = elements == 0 ? 0 : 1;
    int64_t rowSteps[kMaxOuterRank];
    int64_t rows = 1;
    for (int dim = kMaxOuterRank - 1; dim >= 0; --dim)
    {
        rowSteps[dim] = rows;
        rows *= params.dims[dim];
    }
    for (int dim = 0; dim < kMaxOuterRank; ++dim)
    {
        int64_t const size = params.dims[dim];
        int64_t const outStep = params.biasGradientStrides[dim];
        if (outStep != 0)
        {
            plan.resultRows *= size;
        }
        else
        {
            plan.summedRows *= size;
        }
        if (size > 1)
        {
            extend(outStep != 0 ? plan.kept : plan.summed, size, rowSteps[dim], outStep);
        }
    }
}

//! Who shares the summed rows of a result: warps of a block, and then blocks, until the device is busy.
void planShares(BiasGradientPlan& plan)
{
    int64_t const tasks = std::max(plan.resultRows * ((plan.keys + kTileKeys - 1) / kTileKeys), int64_t{1});
    while (plan.partners < kMostPartners && tasks * plan.partners < kWantedWarps
        && plan.summedRows >= kRowsOfWarp * plan.partners)
    {
        plan.partners *= 2;
    }
    int64_t const wanted = kWantedWarps / (tasks * plan.partners);
    int64_t const possible = plan.summedRows / (kRowsOfWarp * plan.partners);
    plan.splits = static_cast<int>(std::max(std::min({wanted, possible, kMostSplits}), int64_t{1}));
}

int64_t alignedBytes(int64_t bytes)
{
    return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

void planBias(MaskedSoftmaxBackwardParams const& params, int64_t elements, SoftmaxBackwardPlans& plans)
{
    BiasGradientPlan& plan = plans.bias;
    plan.probabilities = params.probabilities;
    plan.gradient = params.gradient;
    plan.result = params.biasGradient;
    plan.resultIsFloat32 = params.biasIsFloat32 || params.type == DataType::kFloat32;
    plan.hasKeys = params.biasGradientStrides[kKeyDim] != 0;
    plan.keys = plan.hasKeys ? params.dims[kKeyDim] : 1;
    plan.isVectorwise = remainder(params.probabilities) == 0 && remainder(params.gradient) == 0
        && plan.keys * static_cast<int64_t>(elementSize(params.type)) % kVectorBytes == 0;
    planWalks(params, elements, plan);
    if (plan.hasKeys)
    {
        planShares(plan);
    }
    auto* const scratch = static_cast<uint8_t*>(params.workspace);
    int64_t const sumBytes = plan.hasKeys ? sizeof(SoftmaxRowSum) : sizeof(float);
    int64_t const rowBytes = alignedBytes(plans.rows.rows * sumBytes);
    int64_t const partials = plan.splits > 1 ? plan.splits * plan.resultRows * plan.keys : 0;
    plans.workspaceBytes = static_cast<size_t>(rowBytes + partials * static_cast<int64_t>(sizeof(float)));
    plans.rows.rowSums = plan.hasKeys ? reinterpret_cast<SoftmaxRowSum*>(scratch) : nullptr;
    plans.rows.rowTotals = plan.hasKeys ? nullptr : reinterpret_cast<float*>(scratch);
    plan.rowSums = plans.rows.rowSums;
    plan.rowTotals = plans.rows.rowTotals;
    plan.partials = scratch == nullptr ? nullptr : reinterpret_cast<float*>(scratch + rowBytes);
}

} // namespace

bool makeSoftmaxBackwardPlans(
    MaskedSoftmaxBackwardParams const& params, int multiprocessors, SoftmaxBackwardPlans& plans)
{
    plans = SoftmaxBackwardPlans{};
    int64_t const elements = countElements(params.dims);
    if (elements < 0 || !isInContract(params) || (elements > 0 && !hasTensors(params)))
    {
        return false;
    }
    if (elements > 0)
    {
        planRows(params, elements, multiprocessors, plans.rows);
    }
    if (params.biasGradient != nullptr)
    {
        planBias(params, elements, plans);
    }
    return true;
}

} // namespace attngraft
