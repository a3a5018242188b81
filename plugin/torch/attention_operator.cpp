#include "attention_operator.h"

#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/core/ScalarType.h>

namespace attngraft::torch_library
{
namespace
{

using torch::headeronly::ScalarType;

//! [B,H,Sq,Dv] in q's memory order: where q's heads are closer together than its rows, the context's are too.
Tensor emptyContext(Tensor const& q, int64_t valueSize)
{
    if (q.stride(1) < q.stride(2))
    {
        return torch::stable::transpose(
            torch::stable::new_empty(q, {q.size(0), q.size(2), q.size(1), valueSize}), 1, 2);
    }
    return torch::stable::new_empty(q, {q.size(0), q.size(1), q.size(2), valueSize});
}

Tensor emptyLogSumExp(Tensor const& q, bool isWanted)
{
    if (isWanted)
    {
        return torch::stable::new_empty(q, {q.size(0), q.size(1), q.size(2)}, ScalarType::Float);
    }
    return torch::stable::new_empty(q, {0}, ScalarType::Float);
}

} // namespace

std::tuple<Tensor, Tensor> attend(AttentionTensors const& tensors, MaskScalars const& scalars, bool isExact,
    bool withLogSumExp, AttentionKernels const& kernels)
{
    Tensor const& q = tensors.q;
    AttentionTensors const inPlace = readable(tensors);
    FusedAttentionParams params = paramsOf(inPlace, scalars, isExact);
    Tensor const context = emptyContext(q, params.valueSize);
    Tensor const logSumExp = emptyLogSumExp(q, withLogSumExp);
    auto const bytes = static_cast<int64_t>(kernels.workspaceBytes(params));
    Tensor const workspace = torch::stable::new_empty(q, {bytes}, ScalarType::Byte);
    params.context = {context.mutable_data_ptr(), context.stride(0), context.stride(1), context.stride(2)};
    params.logSumExp = withLogSumExp ? static_cast<float*>(logSumExp.mutable_data_ptr()) : nullptr;
    params.workspace = workspace.mutable_data_ptr();
    kernels.launch(params);
    return {context, logSumExp};
}

} // namespace attngraft::torch_library
