// Products of warp groups on the emulated device: how descriptors, swizzled panels and fragments are read.
#include "emulated_products.h"
#include "emulated_numbers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

namespace attngraft::emulation
{
namespace
{

constexpr int kRows = 16;      //!< of a warp
constexpr int kMostInner = 16; //!< of a product
constexpr int kUnitsOfInner = 2;
constexpr int kPanelRowBytes = 128;
constexpr int kGroupRows = 8; //!< of a panel, whose units change places
constexpr int kGroupBytes = kGroupRows * kPanelRowBytes;
constexpr int kUnitElements = kUnitBytes / 2; //!< of 16 bits
constexpr int kPanelColumns = kPanelRowBytes / 2;

//! What the tensor cores see of an fp32 number.
float tf32(uint32_t bits)
{
    uint32_t const seen = bits & ~0x1fffU;
    float value;
    std::memcpy(&value, &seen, sizeof(value));
    return value;
}

//! Every 16-bit number as float.
std::vector<float> const& floats(bool isHalf)
{
    auto const make = [](bool ofHalf) {
        std::vector<float> values(size_t{1} << 16);
        for (size_t bits = 0; bits < values.size(); ++bits)
        {
            values[bits] = toFloat(static_cast<uint16_t>(bits), ofHalf);
        }
        return values;
    };
    static std::vector<float> const halves = make(true);
    static std::vector<float> const bfloats = make(false);
    return isHalf ? halves : bfloats;
}

//! A factor in shared memory, in panels of 128 bytes a row with the 128-byte swizzle.
struct SharedFactor
{
    SharedMemory& memory;
    FactorType type;
    SharedAddress start;
    SharedAddress panelBytes;

    SharedFactor(SharedMemory& memory_, uint64_t descriptor, FactorType type_)
        : memory(memory_)
        , type(type_)
        , start(static_cast<SharedAddress>(descriptor & 0x3fffU) * kUnitBytes)
        , panelBytes(static_cast<SharedAddress>(descriptor >> 16 & 0x3fffU) * kUnitBytes)
    {
        constexpr uint64_t kSwizzle128 = 1;
        constexpr uint64_t kReserved = uint64_t{3} << 14 | uint64_t{3} << 30 | uint64_t{0xffff} << 46;
        bool const isKnown = descriptor >> 62 == kSwizzle128 && (descriptor >> 32 & 0x3fffU) * kUnitBytes == kGroupBytes
            && (descriptor & kReserved) == 0;
        if (!isKnown || start % kGroupBytes >= kPanelRowBytes)
        {
            throw std::logic_error("a matrix descriptor of another layout than the 128-byte swizzle on whole groups");
        }
    }

    uint8_t const* unit(int row, SharedAddress byte) const
    {
        SharedAddress const plain = start + row / kGroupRows * kGroupBytes + row % kGroupRows * kPanelRowBytes + byte;
        return memory.atForEngine(swizzled128(plain));
    }

    //! The elements of a unit, 8 or 4, `byte` bytes from the beginning of a row of the first panel.
    void read(int row, SharedAddress byte, float* to) const
    {
        uint8_t const* const from = unit(row, byte);
        if (type == FactorType::kTf32)
        {
            uint32_t words[kUnitBytes / 4];
            std::memcpy(words, from, sizeof(words));
            std::transform(std::begin(words), std::end(words), to, tf32);
            return;
        }
        std::vector<float> const& values = floats(type == FactorType::kHalf);
        uint16_t bits[kUnitElements];
        std::memcpy(bits, from, sizeof(bits));
        for (int i = 0; i < kUnitElements; ++i)
        {
            to[i] = values[bits[i]];
        }
    }

    //! As many as a product's inner dimension has, from the beginning of a row.
    void readInner(int row, float* to) const
    {
        read(row, 0, to);
        read(row, kUnitBytes, to + (type == FactorType::kTf32 ? kUnitElements / 2 : kUnitElements));
    }
};

//! left [16][inner], the rows of a warp. Nothing says that its part of the product reads no others: all are to be
//! there.
void readLeft(SharedFactor const& factor, int firstRow, int inner, float* left)
{
    for (int row = 0; row < kWarpsOfGroup * kRows; ++row)
    {
        for (int unit = 0; unit < kUnitsOfInner; ++unit)
        {
            factor.unit(row, unit * kUnitBytes);
        }
    }
    for (int row = 0; row < kRows; ++row)
    {
        factor.readInner(firstRow + row, left + row * inner);
    }
}

//! The same from the lanes' registers: of rows lane / 4 and 8 below it, columns 2 * (lane % 4) and the next, and those
//! 8 behind.
void readLeft(void const* const* lanes, bool isHalf, float* left)
{
    std::vector<float> const& values = floats(isHalf);
    for (int lane = 0; lane < kWarpThreads; ++lane)
    {
        for (int i = 0; i < 4; ++i)
        {
            float* const to = left + (lane / 4 + i % 2 * 8) * kMostInner + lane % 4 * 2 + i / 2 * 8;
            uint32_t const pair = static_cast<uint32_t const*>(lanes[lane])[i];
            to[0] = values[pair & 0xffffU];
            to[1] = values[pair >> 16];
        }
    }
}

//! The same of TF32: of rows lane / 4 and 8 below it, columns lane % 4 and that 4 behind.
void readLeftTf32(void const* const* lanes, float* left)
{
    constexpr int kInner = 8;
    for (int lane = 0; lane < kWarpThreads; ++lane)
    {
        for (int i = 0; i < 4; ++i)
        {
            uint32_t bits;
            std::memcpy(&bits, static_cast<uint32_t const*>(lanes[lane]) + i, sizeof(bits));
            left[(lane / 4 + i % 2 * 8) * kInner + lane % 4 + i / 2 * 4] = tf32(bits);
        }
    }
}

//! right [inner][width], from rows along the inner dimension.
void readRight(SharedFactor const& factor, int width, int inner, float* right)
{
    for (int column = 0; column < width; ++column)
    {
        float along[kMostInner];
        factor.readInner(column, along);
        for (int k = 0; k < inner; ++k)
        {
            right[k * width + column] = along[k];
        }
    }
}

//! The same from rows across it, whose columns beyond the first 64 are in the panels that follow.
void readRightAcross(SharedFactor const& factor, int width, float* right)
{
    for (int k = 0; k < kMostInner; ++k)
    {
        for (int column = 0; column < width; column += kUnitElements)
        {
            SharedAddress const byte = column / kPanelColumns * factor.panelBytes + column % kPanelColumns * 2;
            factor.read(k, byte, right + k * width + column);
        }
    }
}

//! The elements of an accumulator's fragment: calls visit(element of the lane's part, element of the matrix).
template <typename Visit>
void visitFragment(int lane, int width, Visit visit)
{
    for (int n = 0; n < width / 8; ++n)
    {
        for (int i = 0; i < 4; ++i)
        {
            visit(4 * n + i, (lane / 4 + i / 2 * 8) * width + 8 * n + lane % 4 * 2 + i % 2);
        }
    }
}

} // namespace

std::shared_ptr<WarpProducts::Accumulator> WarpProducts::accumulatorOf(int lane, float const* c, int width) const
{
    for (Started const& started : mStarted)
    {
        if (started.accumulator->lanes[lane] == c)
        {
            return started.accumulator;
        }
    }
    auto made = std::make_shared<Accumulator>();
    made->width = width;
    made->sums.resize(static_cast<size_t>(kRows) * width);
    return made;
}

void WarpProducts::start(int lane, Product const& product, float* c, void const* left)
{
    Lane& mine = mLanes[lane];
    int const number = mine.started++;
    if (!mine.isFenced)
    {
        throw std::logic_error("a product starts without a fence after what the threads did with its registers");
    }
    if (number == static_cast<int>(mLog->size()))
    {
        mLog->push_back(product);
    }
    if (!((*mLog)[number] == product))
    {
        throw std::logic_error("the threads of a warp group start different products");
    }
    if (number == mFinished + static_cast<int>(mStarted.size()))
    {
        mStarted.push_back({product, accumulatorOf(lane, c, product.width), {}});
        ++mStarted.back().accumulator->underWay;
    }
    Started& started = mStarted[number - mFinished];
    started.left[lane] = left;
    Accumulator& accumulator = *started.accumulator;
    if (accumulator.lanes[lane] == nullptr)
    {
        accumulator.lanes[lane] = c;
        visitFragment(lane, accumulator.width, [&](int own, int all) {
            accumulator.sums[all] = c[own];
            c[own] = NAN;
        });
    }
    if (accumulator.lanes[lane] != c || accumulator.width != product.width)
    {
        throw std::logic_error("the threads of a warp start a product with different accumulators");
    }
}

void WarpProducts::commit(int lane, bool isReadAtOnce)
{
    Lane& mine = mLanes[lane];
    mine.commits.push_back(mine.started);
    auto const hasStarted = [&](Lane const& other) { return other.started >= mine.started; };
    if (isReadAtOnce && std::all_of(std::begin(mLanes), std::end(mLanes), hasStarted))
    {
        compute(mine.started);
    }
}

int WarpProducts::due(int lane, int pending)
{
    Lane& mine = mLanes[lane];
    mine.isFenced = false;
    int end = mFinished;
    while (static_cast<int>(mine.commits.size()) > pending)
    {
        end = mine.commits.front();
        mine.commits.erase(mine.commits.begin());
    }
    return end;
}

void WarpProducts::finish(int end)
{
    compute(end);
    for (; mFinished < end; ++mFinished)
    {
        Accumulator& accumulator = *mStarted.front().accumulator;
        if (--accumulator.underWay == 0)
        {
            for (int lane = 0; lane < kWarpThreads; ++lane)
            {
                visitFragment(lane, accumulator.width,
                    [&](int own, int all) { accumulator.lanes[lane][own] = accumulator.sums[all]; });
            }
        }
        mStarted.pop_front();
    }
}

bool WarpProducts::isIdle() const
{
    return mStarted.empty() && mFinished == static_cast<int>(mLog->size());
}

void WarpProducts::compute(int end)
{
    for (; mComputed < end; ++mComputed)
    {
        compute(mStarted[mComputed - mFinished]);
    }
}

void WarpProducts::compute(Started const& started) const
{
    Product const& product = started.product;
    int const width = product.width;
    int const inner = product.inner();
    bool const isTf32 = product.type == FactorType::kTf32;
    float left[kRows * kMostInner];
    std::vector<float> right(static_cast<size_t>(inner) * width);
    SharedFactor const rightFactor(*mMemory, product.right, product.type);
    if (!product.isOfRegisters)
    {
        readLeft(SharedFactor(*mMemory, product.left, product.type), mWarpOfGroup * kRows, inner, left);
    }
    else if (isTf32)
    {
        readLeftTf32(started.left, left);
    }
    else
    {
        readLeft(started.left, product.type == FactorType::kHalf, left);
    }
    if (product.isOfRegisters && !isTf32)
    {
        readRightAcross(rightFactor, width, right.data());
    }
    else
    {
        readRight(rightFactor, width, inner, right.data());
    }
    float* const sums = started.accumulator->sums.data();
    if (!product.accumulates)
    {
        std::fill_n(sums, kRows * width, 0.F);
    }
    for (int row = 0; row < kRows; ++row)
    {
        for (int k = 0; k < inner; ++k)
        {
            float const factor = left[row * inner + k];
            float const* const from = right.data() + k * width;
            float* const to = sums + row * width;
            for (int column = 0; column < width; ++column)
            {
                to[column] += factor * from[column];
            }
        }
    }
}

} // namespace attngraft::emulation
