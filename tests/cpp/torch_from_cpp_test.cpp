// PyTorch's operators from C++: a library opened by dlopen, an operator called through PyTorch's stable C interface.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <dlfcn.h>
#include <optional>
#include <vector>

namespace attngraft
{
namespace
{

using torch::stable::Tensor;
using torch::stable::detail::from;

constexpr int64_t kQueries = 2;
constexpr int64_t kKeys = 3;
constexpr double kScale = 0.5;

//! masked_softmax of scores [kQueries, kKeys] under a causal bound that starts at the top left.
Tensor causalSoftmax(Tensor const& scores)
{
    std::optional<Tensor> const none;
    int64_t const topLeft = 1;
    int64_t const unbounded = -1;
    int64_t const zeros = 0;
    std::array<StableIValue, 11> stack{from(scores), from(none), from(none), from(none), from(none), from(kScale),
        from(topLeft), from(unbounded), from(unbounded), from(0.0), from(zeros)};
    TORCH_ERROR_CODE_CHECK(
        torch_call_dispatcher("attngraft_emulated::masked_softmax", "", stack.data(), TORCH_ABI_VERSION));
    return torch::stable::detail::to<Tensor>(stack[0]);
}

TEST(TorchFromCpp, TheOperatorOfALibraryThatWasOpened)
{
    void* const library = dlopen(ATTNGRAFT_EMULATED_TORCH, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    std::vector<float> memory{1.F, 9.F, 9.F, 2.F, 4.F, 9.F};
    torch::stable::Device const cpu(torch::headeronly::DeviceType::CPU);
    Tensor const scores = torch::stable::from_blob(
        memory.data(), {kQueries, kKeys}, {kKeys, 1}, cpu, torch::headeronly::ScalarType::Float);
    Tensor const probabilities = causalSoftmax(scores);
    ASSERT_EQ(probabilities.numel(), kQueries * kKeys);
    auto const* const found = static_cast<float const*>(probabilities.const_data_ptr());
    double const second = 1.0 / (1.0 + std::exp(kScale * (2.0 - 4.0)));
    std::array<double, 6> const expected{1.0, 0.0, 0.0, 1.0 - second, second, 0.0};
    for (size_t i = 0; i < expected.size(); ++i)
    {
        EXPECT_NEAR(found[i], expected[i], 1e-6) << "element " << i;
    }
}

} // namespace
} // namespace attngraft
