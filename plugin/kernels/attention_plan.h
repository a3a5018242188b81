// From the caller's parameters to what an attention kernel needs. In: FusedAttentionParams. Out: AttentionPlan, plain
// data. Runs on the host, touches no device.
#pragma once

#include "attention_choice.h"
#include "divisor.h"
#include "fused_attention.h"
#include "mask.h"

#include <cstddef>
#include <cstdint>

namespace attngraft
{

//! Where the partial results of split keys lie: for each split and row of the context the sum of exp(s - maximum) * v,
//! not divided by anything, the maximum and the sum of exp(s - maximum), all fp32.
struct PartialResults
{
    float* context{nullptr}; //!< [splits, rows, valueSize]
    float* maximum{nullptr}; //!< [splits, rows], of s; -inf where no key is allowed
    float* sum{nullptr};     //!< [splits, rows]
};

struct AttentionPlan
{
    HeadTensor<void const*> query{};
    HeadTensor<void const*> key{};
    HeadTensor<void const*> value{};
    HeadTensor<void*> context{};
    float* logSumExp{nullptr};

    int64_t queries{0};
    int32_t keys{0};
    int32_t headSize{0};
    int32_t valueSize{0};
    int32_t heads{0};
    int32_t kvHeads{0};
    Divisor headsOfGroup{}; //!< query heads of a key head
    int64_t queryGroupStride{0};
    Divisor headGroups{};     //!< blocks of a batch element side by side: heads / packedHeads
    Divisor packedHeads{};    //!< query heads whose rows lie in one block, all of one key head; 1: none
    int64_t rows{0};          //!< of such a group: queries * packedHeads, head fastest
    Divisor valueChunks{};    //!< blocks that share a row of the context
    int32_t splits{1};        //!< blocks that share a row's keys
    int32_t keysPerSplit{0};  //!< a multiple of the tile's keys
    PartialResults partial{}; //!< where splits > 1

    IntervalMask interval{};
    ScoreMap scoreMap{};
    EmptyRows emptyRows{EmptyRows::kZeros};
    AttentionMask mask{AttentionMask::kInterval};
    BroadcastTensor bias{};
    bool biasIsFloat32{false};
    bool isBiasPaired{false}; //!< the biases of keys 2i and 2i + 1 are one aligned load, for every row
    BroadcastTensor keep{};
    KeepType keepType{KeepType::kInt8};

    DataType type{DataType::kFloat16};
    bool isExact{false};
    int64_t batch{0};
    bool isVectorwise{false}; //!< every row of every tensor is whole vectors of 16 bytes
    int32_t variant{0};       //!< index into the table, plus 1
};

//! False when `params` are outside the contract, or ask for a variant that does not serve them.
bool makeAttentionPlan(FusedAttentionParams const& params, AttentionPlan& plan);

} // namespace attngraft
