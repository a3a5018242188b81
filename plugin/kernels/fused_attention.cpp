// Planning and dispatch by type. In: FusedAttentionParams. Out: one launch, or two for split keys.
#include "fused_attention.h"

#include "attention_kernels.h"
#include "attention_plan.h"

#include <algorithm>
#include <limits>

// Set where the library has kernels for compute capability 9.0.
#if !defined(ATTNGRAFT_WARPGROUPS)
#define ATTNGRAFT_WARPGROUPS 0
#endif

namespace attngraft
{
namespace
{

constexpr bool kCompilesWarpgroups = ATTNGRAFT_WARPGROUPS != 0;

//! Blocks that fill a device, roughly: splits stop there. Two for each multiprocessor of the largest device.
constexpr int64_t kWantedBlocks = 264;

//! Keys below which another split costs more than it gives.
constexpr int64_t kLeastKeysOfSplit = 256;

constexpr int64_t kMaxGridY = 65535;
constexpr int64_t kMaxGroups = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxRows = std::numeric_limits<int32_t>::max() / 2;

template <typename Pointer>
bool hasVectorStrides(HeadTensor<Pointer> const& tensor, int64_t vectorElements)
{
    return tensor.batchStride % vectorElements == 0 && tensor.headStride % vectorElements == 0
        && tensor.rowStride % vectorElements == 0;
}

//! Every row of every tensor is whole vectors, if it begins on one.
bool hasVectorSizes(FusedAttentionParams const& params)
{
    int64_t const perVector = kVectorBytes / static_cast<int64_t>(elementSize(params.type));
    return params.headSize % perVector == 0 && params.valueSize % perVector == 0
        && params.queryGroupStride % perVector == 0 && hasVectorStrides(params.query, perVector)
        && hasVectorStrides(params.key, perVector) && hasVectorStrides(params.value, perVector)
        && hasVectorStrides(params.context, perVector);
}

bool isVectorwise(FusedAttentionParams const& params)
{
    return hasVectorSizes(params) && isAligned(params.query.data, kVectorBytes)
        && isAligned(params.key.data, kVectorBytes) && isAligned(params.value.data, kVectorBytes)
        && isAligned(params.context.data, kVectorBytes);
}

bool isInContract(FusedAttentionParams const& params)
{
    bool const hasSizes = params.batch >= 0 && params.heads >= 0 && params.kvHeads >= 0 && params.queries >= 0
        && params.keys >= 0 && params.headSize >= 1 && params.headSize <= kMaxHeadSize && params.valueSize >= 1
        && params.valueSize <= kMaxHeadSize;
    bool const hasGroups = params.heads == 0 || (params.kvHeads > 0 && params.heads % params.kvHeads == 0);
    return hasSizes && hasGroups && isSupported(params.type) && areMasksInContract(params, kScoreDims - 1);
}

bool isEmpty(FusedAttentionParams const& params)
{
    return params.batch == 0 || params.heads == 0 || params.queries == 0;
}

//! Sizes that the grid and 32-bit arithmetic within a block can take.
bool fits(FusedAttentionParams const& params)
{
    return params.batch <= kMaxGroups / params.heads && params.keys <= kMaxRows
        && params.queries <= kMaxRows / params.heads && params.queries <= kMaxGridY * kMmaRows;
}

//! The largest heads of which blocks of one matrix product's rows are in the table, for 16-bit types.
constexpr int64_t kMaxPackedHeadSize = 128;

//! How many query heads of a key head share a block: all of them where their rows fill no more than one matrix
//! product, since then the keys are read once for all. Blocks of so few rows are compiled for whole vectors only.
int64_t packedHeads(FusedAttentionParams const& params, bool isVectorwise)
{
    int64_t const group = params.heads / params.kvHeads;
    bool const differ = params.keep.data != nullptr && params.keep.strides[1] != 0;
    bool const hasTile = isVectorwise && params.type != DataType::kFloat32
        && std::max(params.headSize, params.valueSize) <= kMaxPackedHeadSize;
    return group > 1 && !differ && hasTile && params.queries * group <= kMmaRows ? group : 1;
}

AttentionMask maskOf(FusedAttentionParams const& params)
{
    ScoreMap const map{params.scale, params.softcap};
    bool const isDeferred = map.isPositiveFactor() || map.isCapped();
    if (params.bias.data != nullptr || !isDeferred)
    {
        return AttentionMask::kAny;
    }
    if (params.keep.data == nullptr)
    {
        return AttentionMask::kInterval;
    }
    bool const isOfKeys = params.keep.strides[2] == 0 && params.keys <= kMaxScannedKeys;
    return isOfKeys ? AttentionMask::kKeyBits : AttentionMask::kAny;
}

//! What the choice of a tile needs to know of the current device.
struct Device
{
    //! Where there is none, as when TensorRT-RTX builds for another: what every device has.
    int sharedBytes{kSharedBytesEverywhere};
    bool hasWarpgroups{false};
};

Device currentDevice()
{
    Device device;
    int index = 0;
    int major = 0;
    int minor = 0;
    int bytes = 0;
    auto const get = [&](int& value, cudaDeviceAttr attribute) {
        return cudaDeviceGetAttribute(&value, attribute, index) == cudaSuccess;
    };
    if (cudaGetDevice(&index) == cudaSuccess && get(bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin)
        && get(major, cudaDevAttrComputeCapabilityMajor) && get(minor, cudaDevAttrComputeCapabilityMinor))
    {
        device.sharedBytes = bytes;
        device.hasWarpgroups = kCompilesWarpgroups && major == 9 && minor == 0;
    }
    return device;
}

AttentionWork workOf(FusedAttentionParams const& params, bool isVectorwise)
{
    int64_t const packed = packedHeads(params, isVectorwise);
    AttentionWork work;
    work.blocksOfOneRow = params.batch * (params.heads / packed);
    work.rows = params.queries * packed;
    work.isPacked = packed > 1;
    work.keys = params.keys;
    work.headSize = static_cast<int>(params.headSize);
    work.valueSize = static_cast<int>(params.valueSize);
    work.elementBytes = static_cast<int>(elementSize(params.type));
    int const bits = maskOf(params) == AttentionMask::kKeyBits ? static_cast<int>(params.keys + 255) / 8 : 0;
    Device const device = currentDevice();
    work.sharedBytes = device.sharedBytes - bits;
    work.hasWarpgroups = device.hasWarpgroups && isVectorwise;
    work.isCausal = params.causal != Causal::kNone;
    work.hasBias = params.bias.data != nullptr;
    work.isExact = params.isExact;
    return work;
}

//! Blocks that share a row's keys: as many as fill the device, where there are few rows over many keys. What a row
//! without an allowed key gives is known only when all of them are done, so only zeros can be split.
int64_t splitsOf(FusedAttentionParams const& params, AttentionWork const& work)
{
    if (work.rows > kFewRows || params.emptyRows != EmptyRows::kZeros)
    {
        return 1;
    }
    int64_t const byDevice = kWantedBlocks / std::max<int64_t>(work.blocksOfOneRow, 1);
    return std::clamp<int64_t>(std::min(byDevice, work.keys / kLeastKeysOfSplit), 1, kWantedBlocks);
}

int64_t contextRows(FusedAttentionParams const& params)
{
    return params.batch * params.heads * params.queries;
}

void planSplits(FusedAttentionParams const& params, AttentionWork const& work, AttentionPlan& plan)
{
    int64_t const tileKeys = kAttentionTiles[plan.variant - 1].keys;
    int64_t const wanted = splitsOf(params, work);
    int64_t const keys = (params.keys + wanted - 1) / wanted;
    plan.keysPerSplit = static_cast<int32_t>(std::max<int64_t>((keys + tileKeys - 1) / tileKeys, 1) * tileKeys);
    plan.splits = static_cast<int32_t>(std::max<int64_t>((params.keys + plan.keysPerSplit - 1) / plan.keysPerSplit, 1));
    int64_t const rows = contextRows(params);
    auto* const floats = static_cast<float*>(params.workspace);
    if (plan.splits > 1 && floats != nullptr)
    {
        plan.partial.context = floats;
        plan.partial.maximum = floats + plan.splits * rows * params.valueSize;
        plan.partial.sum = plan.partial.maximum + plan.splits * rows;
    }
}

//! Whether tile `index` may run where the tensors are not vectors throughout.
bool isCompiledFor(int index, bool isVectorwise)
{
    return isVectorwise || isFirstOfItsHead(index);
}

//! The table's choice among the tiles that are compiled for such tensors.
int32_t chooseVariant(AttentionWork const& work, bool isVectorwise)
{
    for (int i = 0; !isVectorwise && i < kAttentionTileCount; ++i)
    {
        if (isCompiledFor(i, isVectorwise) && rank(i, work) > 0)
        {
            return i + 1;
        }
    }
    return chooseAttentionTile(work);
}

//! 0 where the asked-for variant does not serve. Where only the addresses are in its way, which nobody knows before the
//! launch, the table chooses instead.
int32_t variantOf(FusedAttentionParams const& params, AttentionWork const& work, bool isVectorwise)
{
    if (params.variant < 0 || params.variant > kAttentionTileCount)
    {
        return 0;
    }
    if (params.variant > 0 && rank(params.variant - 1, work) == 0)
    {
        return 0;
    }
    bool const isUsable = params.variant > 0 && isCompiledFor(params.variant - 1, isVectorwise);
    return isUsable ? params.variant : chooseVariant(work, isVectorwise);
}

bool hasPointers(FusedAttentionParams const& params)
{
    bool const hasKeys = params.keys == 0 || (params.key.data != nullptr && params.value.data != nullptr);
    size_t const size = elementSize(params.type);
    return params.query.data != nullptr && params.context.data != nullptr && hasKeys
        && isAligned(params.query.data, size) && isAligned(params.key.data, size) && isAligned(params.value.data, size)
        && isAligned(params.context.data, size);
}

//! Whether there is nothing to read but a bias of the scores' type, two keys at a time.
bool isOfBiasAlone(AttentionPlan const& plan)
{
    bool const isOfType = plan.biasIsFloat32 == (plan.type == DataType::kFloat32);
    bool const isAlone = plan.bias.data != nullptr && plan.keep.data == nullptr && !plan.scoreMap.isCapped();
    return isAlone && isOfType && plan.isBiasPaired;
}

//! What the plan's kernel reads. All but its mask must be there.
AttentionMask maskOfPlan(FusedAttentionParams const& params, AttentionPlan const& plan)
{
    AttentionMask const mask = plan.isVectorwise ? maskOf(params) : AttentionMask::kAny;
    bool const fetchesBias = kAttentionTiles[plan.variant - 1].fetchesBias() && isOfBiasAlone(plan);
    return mask == AttentionMask::kAny && fetchesBias ? AttentionMask::kBias : mask;
}

cudaError_t launchOfType(AttentionPlan const& plan, bool usesWarpgroups, cudaStream_t stream)
{
#if ATTNGRAFT_WARPGROUPS
    if (usesWarpgroups)
    {
        switch (plan.type)
        {
        case DataType::kFloat32: return launchWarpgroupAttentionTf32(plan, stream);
        case DataType::kFloat16: return launchWarpgroupAttentionFloat16(plan, stream);
        case DataType::kBFloat16: return launchWarpgroupAttentionBFloat16(plan, stream);
        }
    }
#else
    static_cast<void>(usesWarpgroups); // never: see Device
#endif
    switch (plan.type)
    {
    case DataType::kFloat32:
        return plan.isExact ? launchAttentionFloat32(plan, stream) : launchAttentionTf32(plan, stream);
    case DataType::kFloat16: return launchAttentionFloat16(plan, stream);
    case DataType::kBFloat16: return launchAttentionBFloat16(plan, stream);
    }
    return cudaErrorInvalidValue;
}

} // namespace

bool makeAttentionPlan(FusedAttentionParams const& params, AttentionPlan& plan)
{
    if (!isInContract(params))
    {
        return false;
    }
    plan = AttentionPlan{};
    plan.type = params.type;
    plan.isExact = params.isExact;
    if (isEmpty(params))
    {
        return true;
    }
    if (!fits(params) || !hasPointers(params))
    {
        return false;
    }
    plan.isVectorwise = isVectorwise(params);
    AttentionWork const work = workOf(params, plan.isVectorwise);
    plan.variant = variantOf(params, work, plan.isVectorwise);
    if (plan.variant == 0)
    {
        return false;
    }
    plan.query = params.query;
    plan.key = params.key;
    plan.value = params.value;
    plan.context = params.context;
    plan.logSumExp = params.logSumExp;
    plan.batch = params.batch;
    plan.queries = params.queries;
    plan.keys = static_cast<int32_t>(params.keys);
    plan.headSize = static_cast<int32_t>(params.headSize);
    plan.valueSize = static_cast<int32_t>(params.valueSize);
    plan.heads = static_cast<int32_t>(params.heads);
    plan.kvHeads = static_cast<int32_t>(params.kvHeads);
    plan.headsOfGroup = Divisor(params.heads / params.kvHeads);
    plan.queryGroupStride =
        params.queryGroupStride != 0 ? params.queryGroupStride : plan.headsOfGroup.value * params.query.headStride;
    int64_t const packed = packedHeads(params, plan.isVectorwise);
    plan.packedHeads = Divisor(packed);
    plan.headGroups = Divisor(params.heads / packed);
    plan.rows = work.rows;
    int const tileValue = kAttentionTiles[plan.variant - 1].value;
    plan.valueChunks = Divisor((params.valueSize + tileValue - 1) / tileValue);

    plan.interval = intervalMask(params, params.queries, params.keys);
    plan.scoreMap = ScoreMap{params.scale, params.softcap};
    plan.emptyRows = params.emptyRows;
    plan.bias = params.bias;
    plan.biasIsFloat32 = params.biasIsFloat32 || params.type == DataType::kFloat32;
    size_t const biasBytes = elementSize(plan.biasIsFloat32 ? DataType::kFloat32 : params.type);
    plan.isBiasPaired = hasKeysInPairs(params.bias, kScoreDims - 1, params.keys, biasBytes);
    plan.keep = params.keep;
    plan.keepType = params.keepType;
    plan.mask = maskOfPlan(params, plan);
    planSplits(params, work, plan);
    return true;
}

int attentionVariants(FusedAttentionParams const& params, int32_t* variants, int capacity)
{
    if (!isInContract(params) || isEmpty(params))
    {
        return 0;
    }
    bool const mayBeVectorwise = hasVectorSizes(params);
    AttentionWork const work = workOf(params, mayBeVectorwise);
    int32_t const best = chooseVariant(work, mayBeVectorwise);
    int count = 0;
    auto const add = [&](int32_t variant) {
        if (count < capacity)
        {
            variants[count] = variant;
        }
        ++count;
    };
    if (best > 0)
    {
        add(best);
    }
    for (int i = 0; i < kAttentionTileCount; ++i)
    {
        if (i + 1 != best && rank(i, work) > 0 && isCompiledFor(i, mayBeVectorwise))
        {
            add(i + 1);
        }
    }
    return count;
}

size_t attentionWorkspaceBytes(FusedAttentionParams const& params)
{
    if (!isInContract(params) || isEmpty(params))
    {
        return 0;
    }
    // Blocks that share no row times splits are no more than the wanted blocks, or nothing is split. The bound is the
    // same for all sizes, so that one for the largest serves the smaller ones, which may split where it does not.
    constexpr int64_t kPartialRows = kWantedBlocks * kFewRows;
    bool const maySplit = params.emptyRows == EmptyRows::kZeros;
    return maySplit ? static_cast<size_t>(kPartialRows * (params.valueSize + 2)) * sizeof(float) : 0;
}

cudaError_t launchFusedAttention(FusedAttentionParams const& params, cudaStream_t stream)
{
    AttentionPlan plan;
    if (!makeAttentionPlan(params, plan))
    {
        return cudaErrorInvalidValue;
    }
    if (plan.rows == 0)
    {
        return cudaSuccess;
    }
    if (plan.splits > 1 && plan.partial.context == nullptr)
    {
        return cudaErrorInvalidValue;
    }
    return launchOfType(plan, usesWarpgroups(plan.variant - 1), stream);
}

} // namespace attngraft
