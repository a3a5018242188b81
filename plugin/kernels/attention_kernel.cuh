// The attention kernel: a block's passes over its keys, and what it writes.
#pragma once

#include "attention_tile.cuh"

namespace attngraft
{

//! exp(x) = exp2(x * log2(e)).
constexpr float kPowersPerExp = 1.4426950408889634F;

template <typename Math, typename Tile, AttentionMask kMask, bool kCapped, bool kVectorwise>
struct AttentionBlock
{
    using T = typename Math::Element;
    static constexpr int kSlices = Tile::kSlices;
    static constexpr int kKeyStageBytes = Tile::kKeys * Tile::kHeadBytes;
    static constexpr int kValueStageBytes = Tile::kKeys * Tile::kValueBytes;

    AttentionPlan const& plan;
    BlockPlace const place;
    int const firstRow; //!< of the warp, in the block
    SharedAddress const queryTile;
    SharedAddress const keyTiles;
    SharedAddress const valueTiles;
    KeyBits bits;
    MaskPass pass{MaskPass::kMasked};
    KeyRange range{0, 0};
    AttentionWarp<Math, Tile> warp;
    WarpMask<T, Tile, kMask, kCapped> mask;

    ATTNGRAFT_DEVICE explicit AttentionBlock(AttentionPlan const& plan_)
        : plan(plan_)
        , place(plan_, Tile{})
        , firstRow(warpOfThread() * Tile::kRowsPerWarp)
        , queryTile(dynamicSharedMemory())
        , keyTiles(queryTile + Tile::kSharedBytes - Tile::kStages * (kKeyStageBytes + kValueStageBytes))
        , valueTiles(keyTiles + Tile::kStages * kKeyStageBytes)
        , bits{queryTile + Tile::kSharedBytes}
    { }

    ATTNGRAFT_DEVICE void run()
    {
        uint32_t chosen = 0;
        while (true) // twice at most, in one loop so that the code is there once
        {
            attend();
            bool const isFirst = pass == MaskPass::kMasked;
            if (isFirst)
            {
                if (plan.splits > 1)
                {
                    storePartial();
                    return;
                }
                if (plan.logSumExp != nullptr && place.firstValue == 0)
                {
                    storeLogarithms();
                }
                chosen = plan.emptyRows == EmptyRows::kZeros ? 0U : findEmptyRows();
            }
            storeContext(isFirst ? ~chosen : chosen);
            if (!isFirst || !anyInBlock(chosen != 0))
            {
                return;
            }
            pass = plan.emptyRows == EmptyRows::kUniform ? MaskPass::kUniform : MaskPass::kUnmasked;
        }
    }

private:
    //! Scores to context, over all keys of the block.
    ATTNGRAFT_DEVICE void attend()
    {
        range = keysOfBlock(plan, place, pass);
        int const begin = range.begin / Tile::kKeys * Tile::kKeys;
        loadQueryTile();
        if (scansKeys())
        {
            bits.scan(plan, place, begin, roundUp(range.end), Tile::kThreads);
            synchronizeBlock();
        }
        mask.locate(plan, place, firstRow, pass);
        warp.clear();

        int loading = nextTile(begin);
        for (int stage = 0; stage < Tile::kStages - 1; ++stage)
        {
            loading = loadKeysAndValues(loading, stage);
        }
        int stage = 0;
        int loadStage = Tile::kStages - 1;
        bool isFirst = true;
        for (int firstKey = nextTile(begin); firstKey < range.end; firstKey = nextTile(firstKey + Tile::kKeys))
        {
            if constexpr (Tile::kStages == 1)
            {
                synchronizeBlock(); // all are done with the tile before
                loading = loadKeysAndValues(loading, 0);
                waitForCopies<0>();
                synchronizeBlock();
            }
            else
            {
                waitForCopies<Tile::kStages - 2>();
                synchronizeBlock(); // the tile is there for all, and all are done with the one before
                loading = loadKeysAndValues(loading, loadStage);
            }
            if (isFirst)
            {
                warp.keepQueries(queryTile, firstRow);
                isFirst = false;
            }
            attendTile(firstKey, stage);
            stage = stage + 1 == Tile::kStages ? 0 : stage + 1;
            loadStage = loadStage + 1 == Tile::kStages ? 0 : loadStage + 1;
        }
        waitForCopies<0>();
        synchronizeBlock(); // the context leaves through the queries' tile
        warp.finishSums();
    }

    ATTNGRAFT_DEVICE void attendTile(int firstKey, int stage)
    {
        float const factor = unit() * kPowersPerExp;
        warp.multiplyKeys(queryTile, firstRow, keyTiles + stage * kKeyStageBytes);
        mask.apply(plan, bits, firstKey, pass, warp.scores);
        warp.updateReferences(factor);
        warp.template multiplyValues<kMask == AttentionMask::kAny>(valueTiles + stage * kValueStageBytes, factor);
    }

    //! What the scores, as they are after the mask, are multiplied with to be the contract's s_ij.
    ATTNGRAFT_DEVICE float unit() const
    {
        bool const isScaled = kMask == AttentionMask::kAny || pass == MaskPass::kUniform;
        return isScaled ? 1.F : plan.scoreMap.slope();
    }

    ATTNGRAFT_DEVICE bool scansKeys() const
    {
        return kMask == AttentionMask::kKeyBits && pass == MaskPass::kMasked;
    }

    //! The first tile from `firstKey` on that holds an allowed key.
    ATTNGRAFT_DEVICE int nextTile(int firstKey) const
    {
        if (scansKeys())
        {
            while (firstKey < range.end && !bits.template any<Tile::kKeys>(firstKey))
            {
                firstKey += Tile::kKeys;
            }
        }
        return firstKey;
    }

    static ATTNGRAFT_DEVICE int roundUp(int keys)
    {
        return (keys + Tile::kKeys - 1) / Tile::kKeys * Tile::kKeys;
    }

    ATTNGRAFT_DEVICE void loadQueryTile()
    {
        auto const* const base = static_cast<T const*>(plan.query.data) + place.batch * plan.query.batchStride;
        constexpr int kVectors = Tile::kHead / kElementsOfVector<T>;
        for (int index = static_cast<int>(threadIdx.x); index < Tile::kRows * kVectors; index += Tile::kThreads)
        {
            int const row = index / kVectors;
            int const vector = index % kVectors;
            loadVector<T, kVectorwise>(queryTile + row * Tile::kHeadBytes + swizzled(vector, row),
                base + place.queryOffset(plan, row), vector, row < place.rows ? plan.headSize : 0);
        }
    }

    //! Starts the copy of the tile at `firstKey`, if it is one, and returns the next tile to load. Keys outside the
    //! block's range are zeros: whatever lies there, NaN too, has no part in the products.
    ATTNGRAFT_DEVICE int loadKeysAndValues(int firstKey, int stage)
    {
        if (firstKey < range.end)
        {
            load<Tile::kHead, Tile::kHeadBytes>(plan.key, keyTiles + stage * kKeyStageBytes, firstKey, 0, plan.headSize);
            load<Tile::kValue, Tile::kValueBytes>(
                plan.value, valueTiles + stage * kValueStageBytes, firstKey, place.firstValue, place.valueSize);
            firstKey = nextTile(firstKey + Tile::kKeys);
        }
        commitCopies();
        return firstKey;
    }

    template <int width, int rowBytes>
    ATTNGRAFT_DEVICE void load(
        HeadTensor<void const*> const& tensor, SharedAddress tile, int firstKey, int firstColumn, int size)
    {
        auto const* const base = static_cast<T const*>(tensor.data) + place.batch * tensor.batchStride
            + place.kvHead * tensor.headStride + firstColumn + firstKey * tensor.rowStride;
        loadTile<T, Tile::kKeys, width, rowBytes, Tile::kThreads, kVectorwise>(
            tile, size, base, tensor.rowStride, [&](int row) { return isRead(firstKey + row); });
    }

    ATTNGRAFT_DEVICE bool isRead(int key) const
    {
        bool const inRange = key >= range.begin && key < range.end;
        if constexpr (kMask == AttentionMask::kKeyBits)
        {
            return inRange && (pass != MaskPass::kMasked || (bits.word(key / 32) >> (key % 32) & 1U) != 0);
        }
        return inRange;
    }

    //! Which of the warp's rows have no allowed key, a bit a row. Rows that do not exist count as having one.
    ATTNGRAFT_DEVICE uint32_t findEmptyRows() const
    {
        uint32_t empty = 0;
#pragma unroll
        for (int m = 0; m < kSlices; ++m)
        {
#pragma unroll
            for (int half = 0; half < 2; ++half)
            {
                // Lane 4 r has row r of the eight.
                uint32_t const lanes = ballot(warp.sum[m][half] == 0.F && rowOf(m, half) < place.rows);
#pragma unroll
                for (int r = 0; r < 8; ++r)
                {
                    empty |= (lanes >> (4 * r) & 1U) << (kMmaRows * m + 8 * half + r);
                }
            }
        }
        return empty;
    }

    ATTNGRAFT_DEVICE int rowOf(int m, int half) const
    {
        return firstRow + kMmaRows * m + 8 * half + laneOfThread() / 4;
    }

    //! Writes the context of the rows whose bits are set.
    ATTNGRAFT_DEVICE void storeContext(uint32_t chosen)
    {
#pragma unroll
        for (int m = 0; m < kSlices; ++m)
        {
#pragma unroll
            for (int half = 0; half < 2; ++half)
            {
                stageRow(m, half);
            }
        }
        synchronizeWarp();
        constexpr int kVectors = Tile::kValue / kElementsOfVector<T>;
        for (int index = laneOfThread(); index < Tile::kRowsPerWarp * kVectors; index += 32)
        {
            int const row = index / kVectors;
            int const vector = index % kVectors;
            if (firstRow + row < place.rows && (chosen >> row & 1U) != 0)
            {
                storeVector(firstRow + row, vector);
            }
        }
    }

    //! A row's context, divided by its sum, to shared memory. A row without any key gives zeros.
    ATTNGRAFT_DEVICE void stageRow(int m, int half)
    {
        float const sum = warp.sum[m][half];
        float const inverse = sum == 0.F ? 0.F : 1.F / sum; // NaN stays NaN
        int const row = rowOf(m, half);
#pragma unroll
        for (int n = 0; n < Tile::kValue / 8; ++n)
        {
            float const low = warp.context[m][n][2 * half] * inverse;
            float const high = warp.context[m][n][2 * half + 1] * inverse;
            int const byte = (8 * n + laneOfThread() % 4 * 2) * static_cast<int>(sizeof(T));
            SharedAddress const to =
                queryTile + row * Tile::kValueBytes + swizzled(byte / kVectorBytes, row) + byte % kVectorBytes;
            if constexpr (sizeof(T) == 2)
            {
                storeShared(to, packPair<T>(low, high));
            }
            else
            {
                storeShared(to, uint2{floatAsBits(low), floatAsBits(high)});
            }
        }
    }

    ATTNGRAFT_DEVICE void storeVector(int row, int vector)
    {
        auto const values = loadShared<uint4>(queryTile + row * Tile::kValueBytes + swizzled(vector, row));
        int const column = vector * kElementsOfVector<T>;
        int const present = place.valueSize - column;
        if (present <= 0)
        {
            return;
        }
        T* const to = static_cast<T*>(plan.context.data) + place.batch * plan.context.batchStride
            + place.headOf(plan, row) * plan.context.headStride + place.query(plan, row) * plan.context.rowStride
            + place.firstValue + column;
        if constexpr (kVectorwise)
        {
            *reinterpret_cast<uint4*>(to) = values;
        }
        else
        {
            scatterVector(to, values, present);
        }
    }

    ATTNGRAFT_DEVICE void storeLogarithms()
    {
#pragma unroll
        for (int m = 0; m < kSlices; ++m)
        {
#pragma unroll
            for (int half = 0; half < 2; ++half)
            {
                int const row = rowOf(m, half);
                if (laneOfThread() % 4 == 0 && row < place.rows)
                {
                    float const sum = warp.sum[m][half];
                    float const top = warp.reference[m][half] * unit();
                    plan.logSumExp[place.contextRow(plan, row)] = sum == 0.F ? -INFINITY : top + logf(sum);
                }
            }
        }
    }

    ATTNGRAFT_DEVICE void storePartial()
    {
        int64_t const allRows = plan.batch * plan.heads * plan.queries;
#pragma unroll
        for (int m = 0; m < kSlices; ++m)
        {
#pragma unroll
            for (int half = 0; half < 2; ++half)
            {
                int const row = rowOf(m, half);
                if (row >= place.rows)
                {
                    continue;
                }
                int64_t const index = place.split * allRows + place.contextRow(plan, row);
                float* const to = plan.partial.context + index * plan.valueSize + place.firstValue;
                int const pair = laneOfThread() % 4 * 2;
#pragma unroll
                for (int n = 0; n < Tile::kValue / 8; ++n)
                {
#pragma unroll
                    for (int i = 0; i < 2; ++i)
                    {
                        if (8 * n + pair + i < place.valueSize)
                        {
                            to[8 * n + pair + i] = warp.context[m][n][2 * half + i];
                        }
                    }
                }
                if (pair == 0 && place.firstValue == 0)
                {
                    plan.partial.maximum[index] = warp.reference[m][half] * unit();
                    plan.partial.sum[index] = warp.sum[m][half];
                }
            }
        }
    }
};

template <typename Math, typename Tile, AttentionMask kMask, bool kCapped, bool kVectorwise>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kMinBlocks)
    attentionKernel(__grid_constant__ AttentionPlan const plan)
{
    AttentionBlock<Math, Tile, kMask, kCapped, kVectorwise> block(plan);
    block.run();
}

//! Joins the partial results of a row's splits: one warp a row.
template <typename T>
__global__ void combineSplits(__grid_constant__ AttentionPlan const plan)
{
    int64_t const allRows = plan.batch * plan.heads * plan.queries;
    int64_t const row = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + warpOfThread();
    if (row >= allRows)
    {
        return;
    }
    float top = -INFINITY;
    for (int split = 0; split < plan.splits; ++split)
    {
        top = fmaxf(top, plan.partial.maximum[split * allRows + row]);
    }
    float const reference = top == -INFINITY ? 0.F : top;
    float sum = 0.F;
    for (int split = 0; split < plan.splits; ++split)
    {
        int64_t const index = split * allRows + row;
        sum += plan.partial.sum[index] * exp2Fast((plan.partial.maximum[index] - reference) * kPowersPerExp);
    }
    float const inverse = sum == 0.F ? 0.F : 1.F / sum;
    int64_t const query = row % plan.queries;
    int64_t const head = row / plan.queries % plan.heads;
    int64_t const batch = row / plan.queries / plan.heads;
    T* const to = static_cast<T*>(plan.context.data) + batch * plan.context.batchStride
        + head * plan.context.headStride + query * plan.context.rowStride;
    for (int column = laneOfThread(); column < plan.valueSize; column += 32)
    {
        float value = 0.F;
        for (int split = 0; split < plan.splits; ++split)
        {
            int64_t const index = split * allRows + row;
            float const weight = exp2Fast((plan.partial.maximum[index] - reference) * kPowersPerExp);
            value += plan.partial.context[index * plan.valueSize + column] * weight;
        }
        to[column] = static_cast<T>(value * inverse);
    }
    if (plan.logSumExp != nullptr && laneOfThread() == 0)
    {
        plan.logSumExp[row] = sum == 0.F ? -INFINITY : top + logf(sum);
    }
}

} // namespace attngraft
