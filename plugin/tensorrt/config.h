// The mask configuration, which both operators have: from scores to probabilities. Read from plugin fields and written
// back to them. Needs TensorRT's headers only, so all of it is tested on the CPU.
#pragma once

#include "contract.h"
#include "operands.h"
#include "owned_fields.h"

#include <NvInferRuntime.h>

#include <cstdint>
#include <vector>

namespace attngraft::plugin
{

//! What an input after the tensors of the operator's own means.
enum class Role : int32_t
{
    kBias = 0,
    kKeep = 1,
    kKvLengths = 2,
    kKvStarts = 3,
};

//! The role's name in `operands`.
char const* roleName(Role role) noexcept;

//! All that attngraft::MaskedSoftmax has to configure.
struct MaskConfig
{
    std::vector<Role> operands; //!< in input order, each role at most once
    float scale{1.F};
    Causal causal{Causal::kNone};
    int32_t windowLeft{-1};
    int32_t windowRight{-1};
    float softcap{0.F};
    EmptyRows emptyRows{EmptyRows::kZeros};

    bool operator==(MaskConfig const& other) const noexcept;

    //! Fields that are missing take their defaults, fields that the contract does not know are ignored.
    //! Accepts integers as kINT32 or kINT64, floats as kFLOAT32 or kFLOAT64, each an array of one, and strings with or
    //! without their trailing NUL. Throws std::invalid_argument that names the field for anything else.
    static MaskConfig parse(nvinfer1::PluginFieldCollection const* fields);

    //! Takes in one field; false when it is none of the mask's.
    bool readField(nvinfer1::PluginField const& field);

    //! All fields; parse gives the same configuration back.
    OwnedFields fields() const;
};

} // namespace attngraft::plugin
