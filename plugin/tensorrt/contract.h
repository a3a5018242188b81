// Names, versions and limits of the operators, as python/attngraft/contract.py states them.
#pragma once

#include <cstdint>

namespace attngraft::plugin
{

//! Equals CONTRACT_VERSION of contract.py. Python refuses a library that was built for another one.
constexpr int32_t kContractVersion = 1;

constexpr char const* kNamespace = "attngraft";
constexpr char const* kMaskedSoftmaxName = "MaskedSoftmax";
constexpr char const* kFusedAttentionName = "FusedAttention";
constexpr char const* kPluginVersion = "1";

//! Of MaskedSoftmax's scores; the highest is kMaxRank of the kernels' operands.h.
constexpr int32_t kMinRank = 2;
//! Of queries and keys, and of values, in FusedAttention.
constexpr int32_t kMaxHeadSize = 512;
//! Roles that `operands` may name, each once.
constexpr int32_t kMaxOperands = 4;

} // namespace attngraft::plugin
