// The shared memory that tiles of rows pass through: every warp's own ring of them, with a barrier a tile. How many
// rows a tile has, and how many tiles a warp.
#pragma once

#include "mask.h"
#include "operands.h"
#include "softmax_ring.h"
#include "softmax_rungs.h"

#include <cstdint>

namespace attngraft
{

#if !defined(ATTNGRAFT_SOFTMAX_TILE_WARPS)
#define ATTNGRAFT_SOFTMAX_TILE_WARPS 12
#endif
#if !defined(ATTNGRAFT_SOFTMAX_TILE_BYTES)
#define ATTNGRAFT_SOFTMAX_TILE_BYTES 5120
#endif

//! Of the one block that a multiprocessor has. In a prototype on an H200 8 lost up to 8% under masks without any order,
//! 12 up to 4% at 197 keys, 16 at most 1%, where as many stages fit.
constexpr int kTileWarps = ATTNGRAFT_SOFTMAX_TILE_WARPS;

//! Tiles are no larger where they have several rows: 3 to 5 KB were best in that prototype.
constexpr int kTileBytes = ATTNGRAFT_SOFTMAX_TILE_BYTES;

//! One tile is used while another is written and read anew. More than the most make nothing faster.
constexpr int kFewestStages = 2;
constexpr int kMostStages = 4;

//! A tile lies in shared memory as it lies in memory modulo this: the prototype reached 97% of the bandwidth then, 92%
//! otherwise.
constexpr int kLineBytes = 128;

ATTNGRAFT_HOST_DEVICE constexpr int roundedUp(int bytes, int to)
{
    return (bytes + to - 1) / to * to;
}

//! Where things lie in a block's shared memory; the barriers first.
struct TileLayout
{
    int rows;     //!< of a tile, but for the last one
    int stages;   //!< tiles of a warp's ring
    int rowBytes; //!< of scores

    //! Of a stage: a tile that begins anywhere, in whole vectors, anywhere in a line.
    ATTNGRAFT_HOST_DEVICE constexpr int stageBytes() const
    {
        int const vectors = roundedUp(kVectorBytes - 1 + rows * rowBytes, kVectorBytes);
        return roundedUp(kLineBytes - kVectorBytes + vectors, kLineBytes);
    }

    ATTNGRAFT_HOST_DEVICE constexpr int firstStage() const
    {
        return roundedUp(kTileWarps * stages * kBarrierBytes, kLineBytes);
    }

    ATTNGRAFT_HOST_DEVICE constexpr int bytes() const
    {
        return firstStage() + kTileWarps * stages * stageBytes();
    }
};

//! As many rows as the warp's thread groups hold at once, and twice that while a tile stays small.
constexpr int rowsOfTile(TileRung const& rung, int rowBytes)
{
    int rows = rung.groups();
    while (2 * rows * rowBytes <= kTileBytes)
    {
        rows *= 2;
    }
    return rows;
}

//! The most stages that fit in so much shared memory, 0 where too few do.
constexpr int tileStages(int tileRows, int rowBytes, int sharedBytes)
{
    int stages = kMostStages;
    while (stages >= kFewestStages && TileLayout{tileRows, stages, rowBytes}.bytes() > sharedBytes)
    {
        --stages;
    }
    return stages >= kFewestStages ? stages : 0;
}

} // namespace attngraft
