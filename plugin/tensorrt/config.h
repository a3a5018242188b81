// One configuration of attngraft::MaskedSoftmax, read from plugin fields and written back to them.
// Needs TensorRT's headers only, so all of it is tested on the CPU.
#pragma once

#include "contract.h"
#include "masked_softmax.h"

#include <NvInferRuntime.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace attngraft::plugin
{

//! What an input after the scores means.
enum class Role : int32_t
{
    kBias = 0,
    kKeep = 1,
    kKvLengths = 2,
    kKvStarts = 3,
};

//! The role's name in `operands`.
char const* roleName(Role role) noexcept;

struct MaskedSoftmaxConfig
{
    std::vector<Role> operands; //!< in input order, each role at most once
    float scale{1.F};
    Causal causal{Causal::kNone};
    int32_t windowLeft{-1};
    int32_t windowRight{-1};
    float softcap{0.F};
    EmptyRows emptyRows{EmptyRows::kZeros};

    bool operator==(MaskedSoftmaxConfig const& other) const noexcept;
};

//! Fields that are missing take their defaults, fields that the contract does not know are ignored.
//! Accepts integers as kINT32 or kINT64, floats as kFLOAT32 or kFLOAT64, each an array of one, and strings with or
//! without their trailing NUL. Throws std::invalid_argument that names the field for anything else.
MaskedSoftmaxConfig parseFields(nvinfer1::PluginFieldCollection const* fields);

//! Names and types of all fields, for IPluginCreatorV3One::getFieldNames.
nvinfer1::PluginFieldCollection const* fieldNames() noexcept;

//! A configuration as plugin fields. The fields point into this object, which therefore neither moves nor copies.
class SerializedConfig
{
public:
    explicit SerializedConfig(MaskedSoftmaxConfig const& config);
    SerializedConfig(SerializedConfig const&) = delete;
    SerializedConfig& operator=(SerializedConfig const&) = delete;

    nvinfer1::PluginFieldCollection const* fields() const noexcept
    {
        return &mCollection;
    }

    //! The same on one line, for the timing cache's key and the engine inspector.
    char const* text() const noexcept
    {
        return mText.c_str();
    }

private:
    static constexpr size_t kFieldCount = 7;

    std::string mOperands;
    float mScale;
    std::string mCausal;
    int32_t mWindowLeft;
    int32_t mWindowRight;
    float mSoftcap;
    std::string mEmptyRows;
    std::string mText;
    std::array<nvinfer1::PluginField, kFieldCount> mFields;
    nvinfer1::PluginFieldCollection mCollection{};
};

} // namespace attngraft::plugin
