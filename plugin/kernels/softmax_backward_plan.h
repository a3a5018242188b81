// From the caller's parameters to what the backward kernels need. In: MaskedSoftmaxBackwardParams. Out: plain data.
// Runs on the host, touches no device.
#pragma once

#include "mask.h"
#include "masked_softmax_backward.h"
#include "softmax_backward_policy.h"

#include <cstdint>

namespace attngraft
{

//! What the bias's gradient needs of a row.
struct SoftmaxRowSum
{
    float sum;   //!< of p * g
    float weigh; //!< 0 for a row that passes no gradient on
};

//! The masks, where rows without any allowed key are looked for.
struct AllowedKeys
{
    int64_t dims[kMaxRank]{};
    IntervalMask interval{};
    ScoreMap scoreMap{};
    void const* scores{nullptr};
    BroadcastTensor bias{};
    bool biasIsFloat32{false};
    BroadcastTensor keep{};
    KeepType keepType{KeepType::kInt8};
};

//! How rows are read and written.
enum class SoftmaxBackwardRows : int32_t
{
    kVectorwise, //!< every row of every tensor consists of whole vectors
    kShifted,    //!< rows begin anywhere
    kGeneral,    //!< the same where there is a softcap, or rows without any allowed key are looked for
};

struct SoftmaxBackwardPlan
{
    void const* probabilities{nullptr};
    void const* gradient{nullptr};
    void const* scores{nullptr};
    void* result{nullptr};
    int64_t rows{0};
    int64_t keys{0};
    SoftmaxBackwardRows kind{SoftmaxBackwardRows::kShifted};
    SoftmaxBackwardPolicy policy{};

    //! Vectors of the probabilities are vectors there too: both have the same remainder modulo 16 bytes.
    bool gradientIsInStep{false};
    bool scoresAreInStep{false};
    bool resultIsInStep{false};

    uint32_t zero{0}; //!< see RowVector::forget
    float scale{1.F};
    bool isCapped{false};
    float innerScale{0.F}; //!< scale / softcap
    bool searchesKeys{false};
    AllowedKeys allowed{};

    SoftmaxRowSum* rowSums{nullptr}; //!< [rows], where a gradient of a bias with keys follows
    float* rowTotals{nullptr};       //!< [rows] sums of ds, where one of a bias without keys does
};

//! Dimensions of the scores' rows that one index walks through, and how far a step of each leads.
struct RowWalk
{
    int rank{0};
    int64_t dims[kMaxOuterRank]{};
    int64_t rowSteps[kMaxOuterRank]{}; //!< in rows of the scores
    int64_t outSteps[kMaxOuterRank]{}; //!< in elements of the bias's gradient
};

//! The gradient of the bias: for each row and key of it the sum of ds over the summed rows.
struct BiasGradientPlan
{
    void const* probabilities{nullptr};
    void const* gradient{nullptr};
    SoftmaxRowSum const* rowSums{nullptr};
    float const* rowTotals{nullptr};
    bool hasKeys{true};       //!< else one element a row, of rowTotals alone
    bool isVectorwise{false}; //!< rows of p and g consist of whole vectors
    int64_t keys{0};          //!< of a row of the result

    void* result{nullptr};
    bool resultIsFloat32{false};
    float* partials{nullptr}; //!< [splits, resultRows, keys], where splits > 1

    RowWalk kept{};
    RowWalk summed{};
    int64_t resultRows{0};
    int64_t summedRows{0}; //!< 0: there are no scores, and the result is 0
    int splits{1};         //!< blocks that share the rows of a result
    int partners{1};       //!< warps of a block that do
};

struct SoftmaxBackwardPlans
{
    SoftmaxBackwardPlan rows{};
    BiasGradientPlan bias{}; //!< its result is nullptr where none is wanted
    size_t workspaceBytes{0};
};

//! False when `params` are outside the contract. `multiprocessors` as chooseSoftmaxBackward.
bool makeSoftmaxBackwardPlans(
    MaskedSoftmaxBackwardParams const& params, int multiprocessors, SoftmaxBackwardPlans& plans);

} // namespace attngraft
