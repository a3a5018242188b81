#include "reference_softmax.h"

#include "emulated_numbers.h"
#include "mask.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

namespace attngraft
{
namespace
{

constexpr double kInfinity = std::numeric_limits<double>::infinity();

float load(void const* data, int64_t index, DataType type)
{
    if (type == DataType::kFloat32)
    {
        return static_cast<float const*>(data)[index];
    }
    return emulation::toFloat(static_cast<uint16_t const*>(data)[index], type == DataType::kFloat16);
}

void store(void* data, int64_t index, DataType type, double value)
{
    if (type == DataType::kFloat32)
    {
        static_cast<float*>(data)[index] = static_cast<float>(value);
        return;
    }
    __half const half = __double2half(value);
    __nv_bfloat16 const brain = __double2bfloat16(value);
    void const* const bits = type == DataType::kFloat16 ? static_cast<void const*>(&half) : &brain;
    std::memcpy(static_cast<uint16_t*>(data) + index, bits, sizeof(uint16_t));
}

bool keeps(void const* data, int64_t index, KeepType type)
{
    switch (type)
    {
    case KeepType::kInt8: return static_cast<int8_t const*>(data)[index] != 0;
    case KeepType::kInt32: return static_cast<int32_t const*>(data)[index] != 0;
    case KeepType::kInt64: return static_cast<int64_t const*>(data)[index] != 0;
    }
    return false;
}

//! One row: s of each key, and whether it may count.
struct Row
{
    std::vector<double> s;
    std::vector<bool> allowed;

    //! Softmax over the allowed keys. False where there is none.
    bool normalise(std::vector<double>& weights) const
    {
        double top = -kInfinity;
        bool hasNan = false;
        for (size_t key = 0; key < s.size(); ++key)
        {
            hasNan = hasNan || (allowed[key] && (std::isnan(s[key]) || s[key] == kInfinity));
            top = allowed[key] ? std::max(top, s[key]) : top;
        }
        double total = 0;
        for (size_t key = 0; key < s.size(); ++key)
        {
            weights[key] = allowed[key] ? std::exp(hasNan ? NAN : s[key] - top) : 0.0;
            total += weights[key];
        }
        std::for_each(weights.begin(), weights.end(), [&](double& weight) { weight /= total == 0 ? 1.0 : total; });
        return hasNan || total != 0;
    }
};

class Reference
{
public:
    explicit Reference(MaskedSoftmaxParams const& params)
        : mParams(params)
        , mKeys(params.dims[kKeyDim])
        , mMask(intervalMask(params, params.dims[kQueryDim], mKeys))
    { }

    //! The rows of all indices in the dimensions from `dim` on. `index` holds those before it.
    void rows(int dim, int64_t (&index)[kMaxRank])
    {
        if (dim == kKeyDim)
        {
            writeRow(index);
            return;
        }
        for (index[dim] = 0; index[dim] < mParams.dims[dim]; ++index[dim])
        {
            rows(dim + 1, index);
        }
    }

private:
    static int64_t offset(BroadcastTensor const& tensor, int64_t const (&index)[kMaxRank])
    {
        int64_t found = 0;
        for (int dim = 0; dim < kKeyDim; ++dim)
        {
            found += tensor.strides[dim] * index[dim];
        }
        return found;
    }

    double score(int64_t key, int64_t bias) const
    {
        double const x = load(mParams.scores, mNext + key, mParams.type) * static_cast<double>(mParams.scale);
        double const s = mParams.softcap > 0 ? mParams.softcap * std::tanh(x / mParams.softcap) : x;
        DataType const type = mParams.biasIsFloat32 ? DataType::kFloat32 : mParams.type;
        return mParams.bias.data == nullptr
            ? s
            : s + load(mParams.bias.data, bias + key * mParams.bias.strides[kKeyDim], type);
    }

    Row readRow(int64_t const (&index)[kMaxRank], KeyInterval interval) const
    {
        RowMask<int64_t> const mask{interval.begin, interval.end};
        int64_t const keep = offset(mParams.keep, index);
        int64_t const bias = offset(mParams.bias, index);
        Row row;
        for (int64_t key = 0; key < mKeys; ++key)
        {
            bool const kept = mParams.keep.data == nullptr
                || keeps(mParams.keep.data, keep + key * mParams.keep.strides[kKeyDim], mParams.keepType);
            row.s.push_back(score(key, bias));
            row.allowed.push_back(mask.allows(key, kept) && row.s.back() != -kInfinity);
        }
        return row;
    }

    void writeRow(int64_t const (&index)[kMaxRank])
    {
        Row row = readRow(index, mMask.row(index[0], index[kQueryDim]));
        std::vector<double> weights(row.s.size());
        if (!row.normalise(weights) && mParams.emptyRows == EmptyRows::kUniform)
        {
            std::fill(weights.begin(), weights.end(), 1.0 / static_cast<double>(mKeys));
        }
        else if (mParams.emptyRows == EmptyRows::kUnmasked
            && std::find(row.allowed.begin(), row.allowed.end(), true) == row.allowed.end())
        {
            std::transform(row.s.begin(), row.s.end(), row.allowed.begin(), [](double s) { return s != -kInfinity; });
            row.normalise(weights);
        }
        for (int64_t key = 0; key < mKeys; ++key)
        {
            store(mParams.probabilities, mNext++, mParams.type, weights[static_cast<size_t>(key)]);
        }
    }

    MaskedSoftmaxParams const& mParams;
    int64_t mKeys;
    IntervalMask mMask;
    int64_t mNext{0}; //!< where the next row begins: scores and probabilities are contiguous
};

} // namespace

void referenceSoftmax(MaskedSoftmaxParams const& params)
{
    if (!hasKeysTogether(params.bias, kKeyDim) || !hasKeysTogether(params.keep, kKeyDim))
    {
        throw std::runtime_error("a mask whose keys are not neighbours");
    }
    int64_t index[kMaxRank]{};
    Reference(params).rows(0, index);
}

} // namespace attngraft
