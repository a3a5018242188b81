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

//! Every dimension but the last one.
constexpr int kMaxOuterRank = kMaxRank - 1;

//! Where a row of `bias` and of `keep` begins. Dimensions that both walk through in step are merged, since each one
//! left costs the kernel a division.
struct RowOffsets
{
    int rank{0};
    Divisor dims[kMaxOuterRank]{};
    int64_t biasStrides[kMaxOuterRank]{};
    int64_t keepStrides[kMaxOuterRank]{};
};

//! Which tensors a kernel reads beside the scores. The two in the middle are the common cases, whose loads are vectors
//! and start together with those of the scores.
enum class MaskTensors : int32_t
{
    kNone,      //!< s is the raw score; the scale, a positive factor, is multiplied in later
    kKeepBytes, //!< `keep` of one byte an element, vectors throughout; s as for kNone
    kBias,      //!< `bias` of the scores' type, vectors throughout; no softcap
    kAny,       //!< everything in the contract
};

struct SoftmaxPlan
{
    void const* scores{nullptr};
    void* probabilities{nullptr};
    int64_t rows{0};
    int64_t keys{0};
    Divisor rowsPerBatch{};
    Divisor queries{};
    Policy policy{};
    MaskTensors tensors{MaskTensors::kNone};

    IntervalMask interval{};
    ScoreMap scoreMap{};
    bool scaleIsDeferred{false}; //!< s is the raw score, and the scale multiplies differences of s
    EmptyRows emptyRows{EmptyRows::kZeros};

    RowOffsets offsets{};
    void const* bias{nullptr};
    int64_t biasKeyStride{0};
    bool biasIsFloat32{false};
    void const* keep{nullptr};
    int64_t keepKeyStride{0};
    KeepType keepType{KeepType::kInt8};
};

//! False when `params` are outside the contract.
bool makeSoftmaxPlan(MaskedSoftmaxParams const& params, SoftmaxPlan& plan);

} // namespace attngraft
