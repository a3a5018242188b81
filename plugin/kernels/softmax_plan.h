// From the caller's parameters to what a kernel needs. In: MaskedSoftmaxParams. Out: SoftmaxPlan, plain data.
// Runs on the host, touches no device.
#pragma once

#include "divisor.h"
#include "mask.h"
#include "masked_softmax.h"
#include "softmax_policy.h"

#include <cstdint>

namespace attngraft
{

//! Where rows begin in two tensors. Dimensions that both walk through in step are merged, since each one left but the
//! first costs the kernel a division.
struct RowMap
{
    int rank{0};
    Divisor dims[kMaxOuterRank]{};
    int64_t firstStrides[kMaxOuterRank]{};
    int64_t secondStrides[kMaxOuterRank]{};
};

//! The bytes of memory from a tensor's first element to its last. Whole vectors are read within only.
struct Extent
{
    uint8_t const* low{nullptr};
    uint8_t const* high{nullptr};
};

struct SoftmaxPlan
{
    void const* scores{nullptr};
    void* probabilities{nullptr};
    int64_t rows{0};
    int64_t keys{0};
    Divisor rowsPerBatch{};
    Divisor queries{};
    RowMap places{}; //!< of scores and probabilities, in elements
    Extent scoresExtent{};
    bool isWhole{false}; //!< every row begins and ends on a vector, in scores and in probabilities
    Policy policy{};
    Divisor blocks{};         //!< policy.blocks
    int64_t unitsPerBlock{0}; //!< of a row

    MaskTensors tensors{MaskTensors::kNone};
    IntervalMask interval{};
    ScoreMap scoreMap{};
    bool scaleIsDeferred{false}; //!< s is the raw score, and the scale multiplies differences of s
    EmptyRows emptyRows{EmptyRows::kZeros};

    RowMap masks{};               //!< of bias and keep, in elements
    bool maskIsWhole{false};      //!< the mask's units are aligned to their size, as rows are that are whole
    bool maskEndsInPieces{false}; //!< and begins: no piece of as many elements as a vector has belongs to it in part
    Extent maskExtent{};          //!< of bias or keep, where only one is read
    void const* bias{nullptr};
    int64_t biasKeyStride{0};
    bool biasIsFloat32{false};
    void const* keep{nullptr};
    int64_t keepKeyStride{0};
    KeepType keepType{KeepType::kInt8};
};

//! False when `params` are outside the contract.
bool makeSoftmaxPlan(MaskedSoftmaxParams const& params, SoftmaxDevice const& device, SoftmaxPlan& plan);

} // namespace attngraft
