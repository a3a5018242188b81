// What leaves an attention kernel: contexts through shared memory so that whole vectors are written, log-sum-exps, and
// partial results of split keys.
#pragma once

#include "attention_mask.cuh"
#include "attention_rows.cuh"

namespace attngraft
{

//! A warp's way out. `rows` are its finished AttentionRows, `firstRow` the first of them in the block.
template <typename T, typename Tile, bool kVectorwise, typename Rows>
struct AttentionOutput
{
    static constexpr int kSlices = Tile::kSlices;

    AttentionPlan const& plan;
    BlockPlace<Tile::kPacks> const& place;
    Rows const& rows;
    int firstRow;
    SharedAddress staging; //!< of the block: a row of values for each of its rows
    float unit;            //!< what the scores are multiplied with to be the contract's s_ij
    int lane;              //!< computedHere, or addresses would take up registers while scores and contexts need them

    //! Writes what a pass found. A masked one leaves out the rows that need another pass and returns their bits;
    //! another one writes those of `chosen`.
    ATTNGRAFT_DEVICE uint32_t store(MaskPass pass, uint32_t chosen) const
    {
        bool const isFirst = pass == MaskPass::kMasked;
        if (isFirst)
        {
            if (plan.logSumExp != nullptr && place.firstValue == 0)
            {
                storeLogarithms();
            }
            chosen = plan.emptyRows == EmptyRows::kZeros ? 0U : findEmptyRows();
        }
        storeContext(isFirst ? ~chosen : chosen);
        return chosen;
    }

    ATTNGRAFT_DEVICE void storePartial() const
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
                int const pair = lane % 4 * 2;
#pragma unroll
                for (int n = 0; n < Tile::kValue / 8; ++n)
                {
#pragma unroll
                    for (int i = 0; i < 2; ++i)
                    {
                        if (8 * n + pair + i < place.valueSize)
                        {
                            to[8 * n + pair + i] = rows.context[m][n][2 * half + i];
                        }
                    }
                }
                if (pair == 0 && place.firstValue == 0)
                {
                    plan.partial.maximum[index] = rows.reference[m][half] * unit;
                    plan.partial.sum[index] = rows.sum[m][half];
                }
            }
        }
    }

private:
    //! Which of the warp's rows have no allowed key, a bit a row. Rows that do not exist count as having one.
    ATTNGRAFT_DEVICE uint32_t findEmptyRows() const
    {
        bool hasEmpty = false;
#pragma unroll
        for (int m = 0; m < kSlices; ++m)
        {
            hasEmpty = hasEmpty || rows.sum[m][0] == 0.F || rows.sum[m][1] == 0.F;
        }
        if (!anyInWarp(hasEmpty)) // as good as always
        {
            return 0;
        }
        uint32_t empty = 0;
#pragma unroll
        for (int m = 0; m < kSlices; ++m)
        {
#pragma unroll
            for (int half = 0; half < 2; ++half)
            {
                // Lane 4 r has row r of the eight.
                uint32_t const lanes = ballot(rows.sum[m][half] == 0.F && rowOf(m, half) < place.rows);
#pragma unroll
                for (int r = 0; r < 8; ++r)
                {
                    empty |= (lanes >> (4 * r) & 1U) << (kMmaRows * m + 8 * half + r);
                }
            }
        }
        return empty;
    }

    //! Writes the context of the rows whose bits are set.
    ATTNGRAFT_DEVICE void storeContext(uint32_t chosen) const
    {
        stageRows();
        synchronizeWarp();
        constexpr int kVectors = Tile::kValue / kElementsOfVector<T>;
        if constexpr (!Tile::kPacks && kVectorwise
            && 32 % kVectors == 0) // then a thread needs one pointer and one step
        {
            constexpr int kRowsAtOnce = 32 / kVectors;
            int const vector = lane % kVectors;
            int row = lane / kVectors;
            T* to = contextOf(firstRow + row) + vector * kElementsOfVector<T>;
            if (vector * kElementsOfVector<T> >= place.valueSize)
            {
                return;
            }
#pragma unroll
            for (int i = 0; i < Tile::kRowsPerWarp / kRowsAtOnce; ++i)
            {
                if (firstRow + row < place.rows && (chosen >> row & 1U) != 0)
                {
                    storeGlobal16(to, staged(firstRow + row, vector));
                }
                row += kRowsAtOnce;
                to += kRowsAtOnce * plan.context.rowStride;
            }
        }
        else
        {
            for (int index = lane; index < Tile::kRowsPerWarp * kVectors; index += 32)
            {
                int const row = index / kVectors;
                if (firstRow + row < place.rows && (chosen >> row & 1U) != 0)
                {
                    storeVector(firstRow + row, index % kVectors);
                }
            }
        }
    }

    ATTNGRAFT_DEVICE void storeLogarithms() const
    {
#pragma unroll
        for (int m = 0; m < kSlices; ++m)
        {
#pragma unroll
            for (int half = 0; half < 2; ++half)
            {
                int const row = rowOf(m, half);
                if (lane % 4 == 0 && row < place.rows)
                {
                    float const sum = rows.sum[m][half];
                    float const top = rows.reference[m][half] * unit;
                    plan.logSumExp[place.contextRow(plan, row)] = sum == 0.F ? -INFINITY : top + logf(sum);
                }
            }
        }
    }

    ATTNGRAFT_DEVICE int rowOf(int m, int half) const
    {
        return firstRow + kMmaRows * m + 8 * half + lane / 4;
    }

    //! Contexts, divided by their sums, to shared memory. A row without any key gives zeros.
    ATTNGRAFT_DEVICE void stageRows() const
    {
        constexpr int kPairBytes = 2 * static_cast<int>(sizeof(T));
        constexpr int kPairsOfVector = kVectorBytes / kPairBytes;
        constexpr int kGroupBytes = 8 * kVectorBytes; //!< within which vectors change places
        int const pair = lane % 4;                    // of the 4 in 8 columns, which are one vector or two
        int const row = rowOf(0, 0);
        // Rows 8 apart have their vectors in the same places, and where the next 8 columns lie is a constant away.
        SharedAddress const first = staging + row * Tile::kValueBytes + swizzled(pair / kPairsOfVector, row)
            + pair % kPairsOfVector * kPairBytes;
#pragma unroll
        for (int m = 0; m < kSlices; ++m)
        {
#pragma unroll
            for (int half = 0; half < 2; ++half)
            {
                float const sum = rows.sum[m][half];
                float const inverse = sum == 0.F ? 0.F : reciprocalFast(sum); // NaN stays NaN
                int const rowBytes = (kMmaRows * m + 8 * half) * Tile::kValueBytes;
#pragma unroll
                for (int n = 0; n < Tile::kValue / 8; ++n)
                {
                    int const columnBytes = n * 4 * kPairBytes;
                    SharedAddress const at =
                        (first ^ (columnBytes % kGroupBytes)) + (rowBytes + columnBytes / kGroupBytes * kGroupBytes);
                    stagePair(at, rows.context[m][n][2 * half] * inverse, rows.context[m][n][2 * half + 1] * inverse);
                }
            }
        }
    }

    static ATTNGRAFT_DEVICE void stagePair(SharedAddress at, float low, float high)
    {
        if constexpr (sizeof(T) == 2)
        {
            storeShared(at, packPair<T>(low, high));
        }
        else
        {
            storeShared(at, uint2{floatAsBits(low), floatAsBits(high)});
        }
    }

    ATTNGRAFT_DEVICE uint4 staged(int row, int vector) const
    {
        return loadShared<uint4>(staging + row * Tile::kValueBytes + swizzled(vector, row));
    }

    //! Where the context of a row begins, of the columns that this block computes.
    ATTNGRAFT_DEVICE T* contextOf(int row) const
    {
        return static_cast<T*>(plan.context.data) + place.batch * plan.context.batchStride
            + place.headOf(plan, row) * plan.context.headStride + place.query(plan, row) * plan.context.rowStride
            + place.firstValue;
    }

    ATTNGRAFT_DEVICE void storeVector(int row, int vector) const
    {
        int const column = vector * kElementsOfVector<T>;
        int const present = place.valueSize - column;
        if (present <= 0)
        {
            return;
        }
        T* const to = contextOf(row) + column;
        if constexpr (kVectorwise)
        {
            storeGlobal16(to, staged(row, vector));
        }
        else
        {
            scatterVector(to, staged(row, vector), present);
        }
    }
};

} // namespace attngraft
