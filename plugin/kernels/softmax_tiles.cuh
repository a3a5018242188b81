// Rows that follow each other without gaps, wherever they begin and end: they pass through shared memory in tiles of
// several, so that memory is read and written in long runs, whatever the length of a row. Every warp has a ring of
// tiles of its own and waits for no other. A thread group takes a row of the tile, in place; exponentials are made
// twice.
#pragma once

#include "row_reduction.cuh"
#include "softmax_tile_mask.cuh"
#include "softmax_tile_ring.cuh"
#include "softmax_work.cuh"

namespace attngraft
{

//! `threads` threads of a warp take a row, `units` vectors each.
template <typename T_, MaskTensors tensors, int threads, int units>
struct TileWork
{
    using T = T_;
    static constexpr MaskTensors kTensors = tensors;
    static constexpr int kElements = kVectorBytes / static_cast<int>(sizeof(T)); //!< of a unit
    static constexpr int kThreads = threads;
    static constexpr int kUnits = units;
    static constexpr int kGroups = kWarpThreads / threads; //!< of a warp
    static constexpr int kBlockThreads = kTileWarps * kWarpThreads;
    static_assert(isRaw(tensors), "what else is read would not fit beside the scores");
    static_assert(2 * kElements <= kWarpThreads, "a tile's edges are written by a warp at once");
};

//! A thread's units of a row in shared memory.
template <typename Work>
class TileRow
{
public:
    //! The row whose first element lies in the vector at `row`, `begin` elements behind its beginning, with so many
    //! keys. Of a row without keys nothing is read or written.
    ATTNGRAFT_DEVICE TileRow(SharedAddress row, int begin, int keys, int lane)
        : mPlace(row + static_cast<SharedAddress>(lane * kVectorBytes))
        , mPhase(begin)
        , mBegin(begin - lane * N)
        , mEnd(keys > 0 ? begin + keys - lane * N : 0)
    { }

    ATTNGRAFT_DEVICE void load()
    {
        constexpr uint32_t kNothing = kMinusInfinities<T>;
#pragma unroll
        for (int u = 0; u < kUnits; ++u)
        {
            uint4 vector{kNothing, kNothing, kNothing, kNothing};
            if (u * kStep < mEnd)
            {
                vector = loadShared<uint4>(place(u));
            }
            mWords[u] = {{vector.x, vector.y, vector.z, vector.w}};
        }
    }

    //! What is not allowed, such as neighbouring rows' elements, becomes -inf. Returns the largest score.
    ATTNGRAFT_DEVICE float applyMask(KeptKeys<Work> const& keys)
    {
        Largest<T, N> largest;
#pragma unroll
        for (int u = 0; u < kUnits; ++u)
        {
            uint32_t const kept = keys.of(u, mPhase);
            if (kept != KeptKeys<Work>::kEveryElement)
            {
                KeptKeys<Work>::drop(kept, mWords[u]);
            }
            largest.add(mWords[u]);
        }
        return largest.value();
    }

    ATTNGRAFT_DEVICE float sumUp(Exponent const& exponent) const
    {
        float sums[2] = {0.F, 0.F};
#pragma unroll
        for (int u = 0; u < kUnits; ++u)
        {
            float powers[N];
            unpack(mWords[u], powers);
            exponent.addPowers(powers, sums);
        }
        return sums[0] + sums[1];
    }

    //! Vectors that are shared with a neighbouring row are written element by element, each row's by its own threads.
    ATTNGRAFT_DEVICE void write(Exponent const& exponent, Normalisation const& normalisation) const
    {
        Words<T, N> last; // of the unit that ends behind the row
        int lastUnit = -1;
#pragma unroll
        for (int u = 0; u < kUnits; ++u)
        {
            Words<T, N> const made = probabilities(exponent, normalisation, u);
            if (u * kStep + N <= mEnd && (u > 0 || mBegin <= 0))
            {
                uint32_t const(&w)[4] = made.values;
                storeShared(place(u), uint4{w[0], w[1], w[2], w[3]});
            }
            else if (u * kStep + N <= mEnd)
            {
                storePart(place(u), made, mBegin, N);
            }
            else if (u * kStep < mEnd)
            {
                last = made;
                lastUnit = u;
            }
        }
        if (lastUnit >= 0)
        {
            storePart(place(lastUnit), last, 0, mEnd - lastUnit * kStep);
        }
    }

private:
    using T = typename Work::T;
    using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
    static constexpr int N = Work::kElements;
    static constexpr int kUnits = Work::kUnits;
    static constexpr int kStep = Work::kThreads * N; //!< elements from one of a thread's units to the next
    static constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));

    ATTNGRAFT_DEVICE SharedAddress place(int u) const
    {
        return mPlace + static_cast<SharedAddress>(u * Work::kThreads * kVectorBytes);
    }

    ATTNGRAFT_DEVICE Words<T, N> probabilities(
        Exponent const& exponent, Normalisation const& normalisation, int u) const
    {
        float made[N];
        unpack(mWords[u], made);
#pragma unroll
        for (int e = 0; e < N; ++e)
        {
            made[e] = normalisation(exponent(made[e]));
        }
        return pack<T, N>(made);
    }

    static ATTNGRAFT_DEVICE void storePart(SharedAddress to, Words<T, N> const& words, int begin, int end)
    {
#pragma unroll
        for (int e = 0; e < N; ++e)
        {
            if (e >= begin && e < end)
            {
                uint32_t const word = words.values[e / kPerWord] >> (e % kPerWord * 16);
                storeSharedElement(to + static_cast<SharedAddress>(e * sizeof(T)), static_cast<Bits>(word));
            }
        }
    }

    SharedAddress mPlace; //!< of the first unit
    int mPhase;           //!< of the row: its first element's place in a vector
    int mBegin;           //!< the row's first element, counted from the first unit
    int mEnd;             //!< behind its last one
    Words<T, N> mWords[kUnits];
};

template <typename Work>
class RowsInTiles
{
public:
    ATTNGRAFT_DEVICE explicit RowsInTiles(SoftmaxPlan const& plan)
        : mPlan(plan)
        , mRing(plan)
        , mGroup(static_cast<int>(threadIdx.x) % kWarpThreads / Work::kThreads)
        , mLane(static_cast<int>(threadIdx.x) % Work::kThreads)
        , mFactor(exponentFactor(plan))
    { }

    ATTNGRAFT_DEVICE void run()
    {
        mRing.start();
#pragma unroll 1
        while (mRing.hasMore())
        {
            Tile const tile = mRing.tile();
            SharedAddress const at = mRing.receive(tile);
#pragma unroll 1
            for (int first = 0; first < tile.rows; first += Work::kGroups)
            {
                useUp(tile, at, first + mGroup);
            }
            mRing.writeBack(tile, at);
        }
        mRing.finish();
    }

private:
    using T = typename Work::T;

    //! A row of a tile by each thread group; none, where it lies behind the tile.
    ATTNGRAFT_DEVICE void useUp(Tile const& tile, SharedAddress at, int r)
    {
        bool const isThere = r < tile.rows;
        if (isThere)
        {
            mKeys.find(mPlan, tile.firstRow + static_cast<uint32_t>(r), mLane);
        }
        int const begin = tile.begin + r * mRing.rowBytes();
        auto const inVector = static_cast<int>(static_cast<unsigned>(begin) % kVectorBytes);
        TileRow<Work> row(at + static_cast<SharedAddress>(begin - inVector), inVector / static_cast<int>(sizeof(T)),
            isThere ? static_cast<int>(mPlan.keys) : 0, mLane);
        row.load();
        RowState state;
        state.maximum = maximumOfLanes<Work::kThreads>(row.applyMask(mKeys));
        Exponent const exponent(finiteMaximum(state.maximum), mFactor);
        state.sum = sumOfLanes<Work::kThreads>(row.sumUp(exponent));
        row.write(exponent, Normalisation(mPlan, state, state, mFactor));
    }

    SoftmaxPlan const& mPlan;
    TileRing<T> mRing;
    KeptKeys<Work> mKeys;
    int mGroup; //!< of the warp's
    int mLane;  //!< in it
    float mFactor;
};

template <typename Work>
__global__ void __launch_bounds__(Work::kBlockThreads, 1) softmaxInTiles(__grid_constant__ SoftmaxPlan const plan)
{
    RowsInTiles<Work>(plan).run();
}

} // namespace attngraft
