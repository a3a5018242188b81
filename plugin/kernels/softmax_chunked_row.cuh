// What a thread does with its units of a row that lies in shared memory, chunk by chunk.
#pragma once

#include "softmax_chunks.h"
#include "softmax_held_row.cuh"

namespace attngraft
{

//! `inCluster`: the blocks of a cluster hold a row. Raw scores stay packed, since exponentials are made twice anyway.
template <typename T, MaskTensors tensors, bool inCluster>
struct LongWork : RowWork<T, tensors, kVectorBytes / static_cast<int>(sizeof(T)), kChunkThreads, kChunkUnits, 1,
                      kChunkThreads, inCluster>
{
    static constexpr bool kRecomputes = isRaw(tensors);
    static constexpr int kBlocksOfMultiprocessor = longResidentThreads(isRaw(tensors)) / kChunkThreads;
    static_assert(kBlocksOfMultiprocessor > 0);
};

//! Some of a block's chunks of a row. The blocks of a cluster take turns along the row, so that a row of which few keys
//! are allowed is work for all of them.
struct ChunkRange
{
    int begin{0};
    int end{0};

    ATTNGRAFT_DEVICE bool has(int chunk) const
    {
        return chunk >= begin && chunk < end;
    }
};

//! Units and where they are read.
struct UnitSpan
{
    uint8_t const* from; //!< of unit `begin`
    int begin;           //!< counted from a chunk's first one
    int count;
};

//! Which of a row's chunks are a block's.
struct ChunkShare
{
    int blocks;
    int block; //!< of them

    //! The first unit of the block's chunk.
    ATTNGRAFT_DEVICE int firstUnit(int chunk) const
    {
        return (chunk * blocks + block) * kChunkVectors;
    }

    //! Those that hold units of the row's from `begin` to `end`.
    ATTNGRAFT_DEVICE ChunkRange chunksOf(SoftmaxPlan const& plan, int begin, int end) const
    {
        return {before(plan, begin / kChunkVectors), before(plan, (end + kChunkVectors - 1) / kChunkVectors)};
    }

private:
    //! Of so many chunks of the row, those of this block.
    ATTNGRAFT_DEVICE int before(SoftmaxPlan const& plan, int chunks) const
    {
        return static_cast<int>(plan.blocks.quotient(static_cast<uint32_t>(chunks + blocks - 1 - block)));
    }
};

template <typename Work>
ATTNGRAFT_DEVICE ChunkShare shareOf(SoftmaxPlan const& plan)
{
    if constexpr (Work::kIsCluster)
    {
        return {plan.policy.blocks, blockInCluster()};
    }
    return {1, 0};
}

//! A row as a block finds it, chunk by chunk.
template <typename Work>
class ChunkedRow : public FoundRow<Work, int>
{
public:
    using FoundRow<Work, int>::allowedBegin;
    using FoundRow<Work, int>::allowedEnd;

    ChunkRange allowed; //!< of the block's chunks, those with allowed keys
    int chunks{0};      //!< of the block

    ATTNGRAFT_DEVICE void find(SoftmaxPlan const& plan, ChunkShare const& share, int64_t row, bool ignoresMask)
    {
        int const units = static_cast<int>(plan.unitsPerBlock) * plan.policy.blocks;
        FoundRow<Work, int>::find(plan, row, 0, units, ignoresMask);
        this->findMasks(plan, row);
        allowed = share.chunksOf(plan, allowedBegin, allowedEnd);
        chunks = share.chunksOf(plan, 0, this->limit).end;
    }

    //! Units of the chunk from `first` on with allowed keys that can be read whole.
    ATTNGRAFT_DEVICE UnitSpan readableUnits(int first) const
    {
        int const begin = largerOf(largerOf(allowedBegin, this->mUnits.readableBegin), first);
        int const end = smallerOf(smallerOf(allowedEnd, this->mUnits.readableEnd), first + kChunkVectors);
        return {this->mUnits.from + static_cast<int64_t>(begin) * kVectorBytes, begin - first, end - begin};
    }

    //! Whether the interval of keys allows all of the chunk from unit `first` on, which then lies in the row.
    ATTNGRAFT_DEVICE bool allows(int first) const
    {
        constexpr int N = Work::kElements;
        return this->mMask.begin <= first * N && (first + kChunkVectors) * N <= this->mMask.end;
    }

    //! Whether each unit of the chunk from unit `first` on is the row's, in part at least.
    ATTNGRAFT_DEVICE bool holdsWhole(int first) const
    {
        return first + kChunkVectors <= this->limit;
    }

    //! Whether all of the chunk lies in the row, and each unit of it is stored at once.
    ATTNGRAFT_DEVICE bool storesWhole(int first) const
    {
        constexpr int N = Work::kElements;
        return this->mUnits.begin <= first * N && (first + kChunkVectors) * N <= this->mUnits.end
            && this->mUnits.pieceBytes == kVectorBytes;
    }

private:
    static ATTNGRAFT_DEVICE int largerOf(int a, int b)
    {
        return a > b ? a : b;
    }

    static ATTNGRAFT_DEVICE int smallerOf(int a, int b)
    {
        return a < b ? a : b;
    }
};

//! A thread's units of a chunk. Range: as HeldRow's.
template <typename Work, typename Range>
class ChunkUnits : public HeldRow<Work, int, Range>
{
    using T = typename Work::T;
    using Base = HeldRow<Work, int, Range>;
    using Base::mAllowed;
    using Base::mFirst;
    using Base::mUnits;
    using Base::mValues;
    using Base::mWords;
    static constexpr int N = Work::kElements;
    static constexpr int kUnitBytes = Words<T, N>::kBytes;
    static_assert(kUnitBytes == kVectorBytes && Work::kThreads == kChunkThreads && Work::kUnits == kChunkUnits);

public:
    //! Masked scores replace the scores in shared memory where they are no wider, so that masks are read once. Where
    //! there is but an interval of keys it is not worth while.
    static constexpr bool kIsKept =
        Work::kTensors == MaskTensors::kKeepBytes || (!Work::kIsRaw && sizeof(T) == sizeof(float));

    //! Of the chunk that begins with unit `first`.
    ATTNGRAFT_DEVICE ChunkUnits(ChunkedRow<Work> const& row, int first)
        : Base(row)
    {
        this->moveTo(first + static_cast<int>(threadIdx.x));
        if constexpr (!std::is_same_v<Range, UnitRange<Work::kThreads>>)
        {
            mUnits.pieceBytes = kVectorBytes; // as asked before
        }
    }

    //! Brings units to the chunk that the copy engine cannot read whole: the tensor's first and last one at most.
    ATTNGRAFT_DEVICE void bringEdges(SoftmaxPlan const& plan, SharedAddress chunk) const
    {
        if (!mUnits.isReadable())
        {
            bringEdge(plan, chunk, 0);
            bringEdge(plan, chunk, mUnits.unitCount() - 1);
        }
    }

    ATTNGRAFT_DEVICE void takeScores(SharedAddress chunk)
    {
#pragma unroll
        for (int u = 0; u < Work::kUnits; ++u)
        {
            if (mAllowed.has(u))
            {
                auto const vector = loadShared<uint4>(place(chunk, u));
                mWords[u].values[0] = vector.x;
                mWords[u].values[1] = vector.y;
                mWords[u].values[2] = vector.z;
                mWords[u].values[3] = vector.w;
            }
        }
    }

    //! Masks that are aligned to their units.
    ATTNGRAFT_DEVICE void loadWholeMasks()
    {
        using Mask = MaskUnit<T, N, Work::kTensors>;
        if constexpr (Mask::kIsRead)
        {
            uint8_t const* const mask = Mask::kIsKeep ? this->mMask.keep : this->mMask.bias;
#pragma unroll
            for (int u = 0; u < Work::kUnits; ++u)
            {
                int64_t const unit = mFirst + u * Work::kThreads;
                loadAlignedRun<Mask::kBytes>(mask + unit * Mask::kBytes, this->masks.units[u].words);
            }
        }
    }

    //! Whether there is nothing to mask: then raw scores are s as they are.
    ATTNGRAFT_DEVICE bool areAllAllowed() const
    {
        bool areAllowed = Work::kIsRaw && std::is_same_v<Range, EveryUnit<false>>;
#pragma unroll
        for (int u = 0; u < Work::kUnits; ++u)
        {
            areAllowed = areAllowed && this->masks.units[u].keepsAll();
        }
        return areAllowed;
    }

    ATTNGRAFT_DEVICE float largestRaw() const
    {
        Largest<T, N> largest;
#pragma unroll
        for (int u = 0; u < Work::kUnits; ++u)
        {
            largest.add(mWords[u]);
        }
        return largest.value();
    }

    //! Before exponentials take the place of s.
    ATTNGRAFT_DEVICE void keepMasked(SharedAddress chunk)
    {
        if constexpr (kIsKept)
        {
#pragma unroll
            for (int u = 0; u < Work::kUnits; ++u)
            {
                if (mAllowed.has(u))
                {
                    if constexpr (!Work::kIsRaw)
                    {
                        mWords[u] = pack<T, N>(mValues[u]);
                    }
                    uint32_t const(&w)[4] = mWords[u].values;
                    storeShared(place(chunk, u), uint4{w[0], w[1], w[2], w[3]});
                }
            }
        }
    }

    //! s of what takeScores took another time.
    ATTNGRAFT_DEVICE void maskAgain(SoftmaxPlan const& plan)
    {
        if constexpr (!kIsKept)
        {
            this->applyMasks(plan);
        }
        else if constexpr (!Work::kIsRaw)
        {
#pragma unroll
            for (int u = 0; u < Work::kUnits; ++u)
            {
                unpack(mWords[u], mValues[u]);
            }
        }
    }

private:
    static ATTNGRAFT_DEVICE SharedAddress place(SharedAddress chunk, int u)
    {
        return chunk + (threadIdx.x + static_cast<unsigned>(u * Work::kThreads)) * kUnitBytes;
    }

    ATTNGRAFT_DEVICE void bringEdge(SoftmaxPlan const& plan, SharedAddress chunk, int unit) const
    {
        bool const isReadable = unit >= mUnits.readableBegin && unit < mUnits.readableEnd;
        bool const isAllowed = unit >= this->allowedBegin && unit < this->allowedEnd;
        int const apart = unit - mFirst;
        bool const isMine = apart >= 0 && apart < kChunkVectors && apart % Work::kThreads == 0;
        if (!isReadable && isAllowed && isMine)
        {
            Words<T, N> edge;
            loadWithin<kUnitBytes>(
                mUnits.from + static_cast<int64_t>(unit) * kUnitBytes, plan.scoresExtent, edge.values);
            uint32_t const(&w)[4] = edge.values;
            storeShared(place(chunk, apart / Work::kThreads), uint4{w[0], w[1], w[2], w[3]});
        }
    }
};

} // namespace attngraft
