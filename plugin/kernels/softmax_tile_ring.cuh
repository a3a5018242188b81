// Tiles of neighbouring rows on their way through a warp's ring in shared memory: brought by one bulk copy each,
// written back by one bulk store. The vectors at a tile's ends that it shares with other tiles are written element by
// element.
#pragma once

#include "bulk_instructions.cuh"
#include "softmax_plan.h"
#include "softmax_ring.cuh"
#include "softmax_tile_layout.h"

namespace attngraft
{

template <typename T>
ATTNGRAFT_HOST_DEVICE TileLayout tileLayout(SoftmaxPlan const& plan)
{
    return {plan.policy.tileRows, plan.policy.stages, static_cast<int>(plan.keys) * static_cast<int>(sizeof(T))};
}

//! Bytes are counted from the vector on that holds the tile's first element.
struct Tile
{
    uint8_t const* from; //!< of the scores
    int begin;           //!< of the first element
    int end;             //!< behind the last one
    uint32_t firstRow;
    int rows;
};

//! Whole vectors of a tile.
struct TileSpan
{
    int begin;
    int end;
};

//! A warp's. One thread fills it and has it written, all use what is in it.
template <typename T>
class TileRing
{
public:
    ATTNGRAFT_DEVICE explicit TileRing(SoftmaxPlan const& plan)
        : mPlan(plan)
        , mLayout(tileLayout<T>(plan))
        , mStageBytes(mLayout.stageBytes())
        , mLane(static_cast<int>(threadIdx.x) % kWarpThreads)
        , mTiles((static_cast<uint32_t>(plan.rows) - 1U) / static_cast<uint32_t>(mLayout.rows) + 1U)
        , mNumber(blockIdx.x * kTileWarps + threadIdx.x / kWarpThreads)
        , mStep(gridDim.x * kTileWarps)
        , mNextToFill(mNumber)
    {
        auto const firstStage = threadIdx.x / kWarpThreads * static_cast<SharedAddress>(mLayout.stages);
        mBarriers = dynamicSharedMemory() + firstStage * kBarrierBytes;
        mStages = dynamicSharedMemory() + static_cast<SharedAddress>(mLayout.firstStage())
            + firstStage * static_cast<SharedAddress>(mStageBytes);
    }

    ATTNGRAFT_DEVICE void start()
    {
        if (mLane == 0)
        {
            for (int stage = 0; stage < mLayout.stages; ++stage)
            {
                makeCountingBarrier(full(stage), 1);
            }
            publishCountingBarriers();
            publishToAsyncProxy();
            for (int stage = 0; stage < mLayout.stages; ++stage)
            {
                fillNext();
            }
        }
        synchronizeWarp();
    }

    ATTNGRAFT_DEVICE bool hasMore() const
    {
        return mNumber < mTiles;
    }

    //! The present tile.
    ATTNGRAFT_DEVICE Tile tile() const
    {
        return find(mNumber);
    }

    //! Waits for the present tile. Returns where it begins in shared memory.
    ATTNGRAFT_DEVICE SharedAddress receive(Tile const& tile) const
    {
        waitForPhase(full(mPlace.index), mPlace.parity);
        SharedAddress const at = place(mPlace.index, tile);
        TileSpan const copied = readable(tile);
        if (copied.begin > tile.begin || copied.end < tile.end)
        {
            bringEdges(tile, copied, at);
        }
        return at;
    }

    //! Writes the present tile, now probabilities, and moves on. The stage before it, whose tile was written meanwhile,
    //! is filled anew.
    ATTNGRAFT_DEVICE void writeBack(Tile const& tile, SharedAddress at)
    {
        publishToAsyncProxy(); // what was written here, and what was read where the stage before is filled
        synchronizeWarp();
        TileSpan const whole{roundedUp(tile.begin, kVectorBytes), tile.end / kVectorBytes * kVectorBytes};
        uint8_t* const to =
            static_cast<uint8_t*>(mPlan.probabilities) + (tile.from - static_cast<uint8_t const*>(mPlan.scores));
        if (mLane == 0)
        {
            storeBulk(to + whole.begin, at + static_cast<SharedAddress>(whole.begin), whole.end - whole.begin);
            commitBulkStores();
        }
        int const edge = elementBeside(tile, whole);
        if (edge >= 0)
        {
            storeOnce(to + edge, loadSharedElement<Bits>(at + static_cast<SharedAddress>(edge)));
        }
        if (mLane == 0 && mHasWritten && mNextToFill < mTiles)
        {
            waitForBulkReads<1>();
            fillNext();
        }
        mHasWritten = true;
        mPlace.advance(mLayout.stages);
        mNumber += mStep;
    }

    ATTNGRAFT_DEVICE void finish() const
    {
        if (mLane == 0)
        {
            waitForBulkStores();
        }
    }

    ATTNGRAFT_DEVICE int rowBytes() const
    {
        return mLayout.rowBytes;
    }

private:
    using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;

    ATTNGRAFT_DEVICE SharedAddress full(int stage) const
    {
        return mBarriers + static_cast<SharedAddress>(stage * kBarrierBytes);
    }

    ATTNGRAFT_DEVICE Tile find(uint32_t number) const
    {
        uint32_t const firstRow = number * static_cast<uint32_t>(mLayout.rows);
        uint32_t const left = static_cast<uint32_t>(mPlan.rows) - firstRow;
        int const rows = left < static_cast<uint32_t>(mLayout.rows) ? static_cast<int>(left) : mLayout.rows;
        auto const* const first = static_cast<uint8_t const*>(mPlan.scores) + int64_t{firstRow} * mLayout.rowBytes;
        auto const begin = static_cast<int>(reinterpret_cast<uintptr_t>(first) % kVectorBytes);
        return {first - begin, begin, begin + rows * mLayout.rowBytes, firstRow, rows};
    }

    ATTNGRAFT_DEVICE SharedAddress place(int stage, Tile const& tile) const
    {
        auto const inLine = static_cast<SharedAddress>(reinterpret_cast<uintptr_t>(tile.from) % kLineBytes);
        return mStages + static_cast<SharedAddress>(stage * mStageBytes) + inLine;
    }

    //! Vectors that a copy may bring: none that reaches beyond the tensor.
    ATTNGRAFT_DEVICE TileSpan readable(Tile const& tile) const
    {
        int const end = roundedUp(tile.end, kVectorBytes);
        bool const endsWithin = tile.from + end <= mPlan.scoresExtent.high;
        return {tile.from < mPlan.scoresExtent.low ? kVectorBytes : 0, endsWithin ? end : end - kVectorBytes};
    }

    ATTNGRAFT_DEVICE void fillNext()
    {
        if (mNextToFill < mTiles)
        {
            Tile const next = find(mNextToFill);
            TileSpan const span = readable(next);
            SharedAddress const barrier = full(mPlaceToFill.index);
            SharedAddress const to = place(mPlaceToFill.index, next) + static_cast<SharedAddress>(span.begin);
            arriveExpecting(barrier, span.end - span.begin);
            copyBulkBesideOthers(to, next.from + span.begin, span.end - span.begin, barrier);
            mPlaceToFill.advance(mLayout.stages);
            mNextToFill += mStep;
        }
    }

    //! The tensor's first elements, or its last ones.
    ATTNGRAFT_DEVICE void bringEdges(Tile const& tile, TileSpan const& copied, SharedAddress at) const
    {
        int const edge = elementBeside(tile, copied);
        if (edge >= 0)
        {
            storeSharedElement(at + static_cast<SharedAddress>(edge), loadOnce<Bits>(tile.from + edge));
        }
        synchronizeWarp();
    }

    //! Where the tile's element lies that this thread takes, of those before the span and behind it; -1: it takes none.
    ATTNGRAFT_DEVICE int elementBeside(Tile const& tile, TileSpan const& span) const
    {
        int const inVector = mLane * static_cast<int>(sizeof(T));
        if (inVector < kVectorBytes)
        {
            return inVector >= tile.begin && inVector < span.begin ? inVector : -1;
        }
        int const behind = span.end + inVector - kVectorBytes;
        return behind < tile.end ? behind : -1;
    }

    SoftmaxPlan const& mPlan;
    TileLayout mLayout;
    int mStageBytes;
    int mLane; //!< in the warp
    uint32_t mTiles;
    uint32_t mNumber;     //!< of the present tile
    uint32_t mStep;       //!< to the warp's next one, neighbouring warps taking those between
    uint32_t mNextToFill; //!< the number of the tile that is read next
    SharedAddress mBarriers;
    SharedAddress mStages;
    ChunkPlace mPlace; //!< of the present tile
    ChunkPlace mPlaceToFill;
    bool mHasWritten{false};
};

} // namespace attngraft
