// Descriptions of tensors for the bulk copies of compute capability 9.0.
#pragma once

#include "attention_plan.h"

#include <cuda.h>

namespace attngraft
{

//! Queries [batch, kvHeads, heads of a group, queries, size], read in boxes of one tile's rows by 64 columns, and keys
//! and values [batch, kvHeads, keys, size], of one tile's keys.
struct BulkCopies
{
    CUtensorMap queries{};
    CUtensorMap keys{};
    CUtensorMap values{};
    bool areQueriesUsable{false}; //!< else the kernel copies them by itself
    bool isUsable{false};         //!< the same for keys and values
};

//! Without bulk copies where the driver has none, or where strides are not such as they need.
BulkCopies makeBulkCopies(AttentionPlan const& plan, int tileRows, int tileKeys);

} // namespace attngraft
