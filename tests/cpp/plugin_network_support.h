// Stand-ins for the network around a plugin: dimensions, expressions of them, and a plugin's interfaces.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <limits>
#include <memory>
#include <vector>

namespace attngraft::plugin::test
{

//! A dimension that is 1 at run time, which the builder does not know. -n stands for one that will be n.
constexpr int64_t kDynamic = -1;

//! A dimension of the network: a constant, or known at run time only.
class FakeDimension final : public nvinfer1::IDimensionExpr, public nvinfer1::apiv::VDimensionExpr
{
public:
    FakeDimension(int64_t value, bool isConstant)
        : mValue(value)
        , mIsConstant(isConstant)
    {
        mImpl = this;
    }
    bool isConstant() const noexcept override
    {
        return mIsConstant;
    }
    int64_t getConstantValue() const noexcept override
    {
        return mIsConstant ? mValue : std::numeric_limits<int64_t>::min();
    }
    bool isSizeTensor() const noexcept override
    {
        return false;
    }
    int64_t runTimeValue() const noexcept
    {
        return mValue;
    }

private:
    int64_t mValue;
    bool mIsConstant;
};

//! Works expressions out at once, with the dimensions' values at run time.
class ShapeBuilder final : public nvinfer1::IExprBuilder, public nvinfer1::apiv::VExprBuilder
{
public:
    ShapeBuilder()
    {
        mImpl = this;
    }
    nvinfer1::IDimensionExpr const* constant(int64_t value) override
    {
        return &mDimensions.emplace_back(value, true);
    }
    nvinfer1::IDimensionExpr const* operation(nvinfer1::DimensionOperation operation,
        nvinfer1::IDimensionExpr const& first, nvinfer1::IDimensionExpr const& second) override
    {
        bool const isConstant = first.isConstant() && second.isConstant();
        int64_t const a = static_cast<FakeDimension const&>(first).runTimeValue();
        int64_t const b = static_cast<FakeDimension const&>(second).runTimeValue();
        switch (operation)
        {
        case nvinfer1::DimensionOperation::kPROD: return &mDimensions.emplace_back(a * b, isConstant);
        case nvinfer1::DimensionOperation::kFLOOR_DIV: return &mDimensions.emplace_back(a / b, isConstant);
        default: return nullptr;
        }
    }
    nvinfer1::IDimensionExpr const* declareSizeTensor(
        int32_t, nvinfer1::IDimensionExpr const&, nvinfer1::IDimensionExpr const&) override
    {
        return nullptr;
    }

private:
    std::deque<FakeDimension> mDimensions;
};

//! Shapes of a network's tensors. Sizes below 0 are known at run time only.
class Shapes
{
public:
    nvinfer1::DimsExprs of(std::initializer_list<int64_t> sizes)
    {
        nvinfer1::DimsExprs shape{};
        shape.nbDims = static_cast<int32_t>(sizes.size());
        int32_t i = 0;
        for (int64_t size : sizes)
        {
            shape.d[i++] = &mDimensions.emplace_back(size < 0 ? -size : size, size >= 0);
        }
        return shape;
    }

private:
    std::deque<FakeDimension> mDimensions;
};

//! The sizes as `Shapes::of` takes them.
inline std::vector<int64_t> sizesOf(nvinfer1::DimsExprs const& shape)
{
    std::vector<int64_t> sizes;
    for (int32_t i = 0; i < shape.nbDims; ++i)
    {
        int64_t const value = static_cast<FakeDimension const*>(shape.d[i])->runTimeValue();
        sizes.push_back(shape.d[i]->isConstant() ? value : -value);
    }
    return sizes;
}

struct Plugin
{
    std::unique_ptr<nvinfer1::IPluginV3> object;

    nvinfer1::IPluginV3OneCore& core() const
    {
        return get<nvinfer1::IPluginV3OneCore>(nvinfer1::PluginCapabilityType::kCORE);
    }
    nvinfer1::IPluginV3OneBuild& build() const
    {
        return get<nvinfer1::IPluginV3OneBuild>(nvinfer1::PluginCapabilityType::kBUILD);
    }
    nvinfer1::IPluginV3OneRuntime& runtime() const
    {
        return get<nvinfer1::IPluginV3OneRuntime>(nvinfer1::PluginCapabilityType::kRUNTIME);
    }

    template <typename Capability>
    Capability& get(nvinfer1::PluginCapabilityType type) const
    {
        return *static_cast<Capability*>(object->getCapabilityInterface(type));
    }
};

} // namespace attngraft::plugin::test
