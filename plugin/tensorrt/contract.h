// Names and version of the operator, as python/attngraft/contract.py states them.
#pragma once

#include <cstdint>

namespace attngraft::plugin
{

//! Equals CONTRACT_VERSION of contract.py. Python refuses a library that was built for another one.
constexpr int32_t kContractVersion = 1;

constexpr char const* kNamespace = "attngraft";
constexpr char const* kMaskedSoftmaxName = "MaskedSoftmax";
constexpr char const* kPluginVersion = "1";

constexpr int32_t kMinRank = 2;
//! Roles that `operands` may name, each once.
constexpr int32_t kMaxOperands = 4;

} // namespace attngraft::plugin
