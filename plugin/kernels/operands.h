// What both operators' parameters are made of. Meaning: python/attngraft/contract.py. No CUDA, no TensorRT, no PyTorch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace attngraft
{

constexpr int kMaxRank = 6;
constexpr int kMinScoreRank = 2; //!< without a batch dimension, which is a batch of one

constexpr int kVectorBytes = 16; //!< the widest load of a thread

enum class DataType : int32_t
{
    kFloat32 = 0,
    kFloat16 = 1,
    kBFloat16 = 2,
};

constexpr bool isSupported(DataType type)
{
    return type == DataType::kFloat32 || type == DataType::kFloat16 || type == DataType::kBFloat16;
}

constexpr size_t elementSize(DataType type)
{
    return type == DataType::kFloat32 ? 4 : 2;
}

//! Element type of `keep`: only its width matters, since any non-zero value may attend.
enum class KeepType : int32_t
{
    kInt8 = 0, //!< bool, uint8 and int8
    kInt32 = 1,
    kInt64 = 2,
};

enum class Causal : int32_t
{
    kNone = 0,
    kTopLeft = 1,
    kBottomRight = 2,
};

enum class EmptyRows : int32_t
{
    kZeros = 0,
    kUniform = 1,
    kUnmasked = 2,
};

//! A tensor that broadcasts to the scores. Strides are in elements, one for each dimension of the scores as the
//! operator's parameters give them, 0 where the tensor is broadcast. The last one is 0 or 1.
struct BroadcastTensor
{
    void const* data{nullptr}; //!< nullptr: absent
    int64_t strides[kMaxRank]{};
};

//! How scores become probabilities: the contract's operands and attributes, in the parameters of every operator.
struct MaskParams
{
    BroadcastTensor bias{};
    bool biasIsFloat32{false}; //!< else of the type of the scores, or of the query
    BroadcastTensor keep{};
    KeepType keepType{KeepType::kInt8};
    int32_t const* kvLengths{nullptr}; //!< [batch]
    int32_t const* kvStarts{nullptr};  //!< [batch]

    float scale{1.F};
    float softcap{0.F};
    Causal causal{Causal::kNone};
    int64_t windowLeft{-1};
    int64_t windowRight{-1};
    EmptyRows emptyRows{EmptyRows::kZeros};
};

//! Neighbouring keys are neighbours in memory, or one value serves all of them. `keyDim` is the last dimension's index.
inline bool hasKeysTogether(BroadcastTensor const& tensor, int keyDim)
{
    return tensor.data == nullptr || tensor.strides[keyDim] == 0 || tensor.strides[keyDim] == 1;
}

inline bool isAligned(void const* pointer, size_t bytes)
{
    return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

//! Whether the elements of keys 2i and 2i + 1 are one aligned piece of memory, in every row.
inline bool hasKeysInPairs(BroadcastTensor const& tensor, int keyDim, int64_t keys, size_t elementBytes)
{
    bool isEven = keys % 2 == 0;
    for (int dim = 0; dim < keyDim; ++dim)
    {
        isEven = isEven && tensor.strides[dim] % 2 == 0;
    }
    return isEven && tensor.strides[keyDim] == 1 && isAligned(tensor.data, 2 * elementBytes);
}

} // namespace attngraft
