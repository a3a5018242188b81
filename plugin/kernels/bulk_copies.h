// Descriptions of tensors for the bulk copies of compute capability 9.0.
#pragma once

#include "attention_plan.h"

#include <cuda.h>

namespace attngraft
{

//! Keys and values [batch, kvHeads, keys, size], read in boxes of one tile's keys by 64 columns.
struct BulkCopies
{
    CUtensorMap keys{};
    CUtensorMap values{};
    bool isUsable{false}; //!< else the kernel copies by itself
};

//! Without bulk copies where the driver has none, or where strides are not such as they need.
BulkCopies makeBulkCopies(AttentionPlan const& plan, int tileKeys);

} // namespace attngraft
