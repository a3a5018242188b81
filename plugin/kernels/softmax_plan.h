// From the caller's parameters to what a kernel needs. In: MaskedSoftmaxParams. Out: SoftmaxPlan, plain data.
// Runs on the host, touches no device.
#pragma once

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
    int64_t dims[kMaxOuterRank]{};
    int64_t biasStrides[kMaxOuterRank]{};
    int64_t keepStrides[kMaxOuterRank]{};
};

struct SoftmaxPlan
{
    void const* scores{nullptr};
    void* probabilities{nullptr};
    int64_t rows{0};
    int64_t keys{0};
    int64_t rowsPerBatch{0};
    Policy policy{};

    IntervalMask interval{};
    ScoreMap scoreMap{};
    EmptyRows emptyRows{EmptyRows::kZeros};

    RowOffsets offsets{};
    void const* bias{nullptr};
    int64_t biasKeyStride{0};
    bool biasIsFloat32{false};
    void const* keep{nullptr};
    int64_t keepKeyStride{0};
    KeepType keepType{KeepType::kInt8};

    //! False: the scores are all that is read, and scoreMap is a positive factor.
    bool readsTensors{false};
};

//! False when `params` are outside the contract.
bool makeSoftmaxPlan(MaskedSoftmaxParams const& params, SoftmaxPlan& plan);

} // namespace attngraft
