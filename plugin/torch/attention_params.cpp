#include "attention_params.h"

#include <utility>

namespace attngraft::torch_library
{
namespace
{

void checkHeads(Tensor const& q, Tensor const& k, Tensor const& v)
{
    for (auto const& [tensor, name] : {std::pair{&q, "q"}, std::pair{&k, "k"}, std::pair{&v, "v"}})
    {
        require(tensor->dim() == kScoreDims, name, "four dimensions");
        require(tensor->scalar_type() == q.scalar_type(), name, "the type of q");
        requireDevice(*tensor, name, q, "q");
    }
    requireSizes(k, "k", {q.size(0), k.size(1), k.size(2), q.size(3)});
    requireSizes(v, "v", {q.size(0), k.size(1), k.size(2), v.size(3)});
    bool const hasGroups = q.size(1) == 0 || (k.size(1) > 0 && q.size(1) % k.size(1) == 0);
    require(hasGroups, "q", "a multiple of k's heads");
}

HeadTensor<void const*> constHeadTensor(Tensor const& tensor)
{
    return {tensor.const_data_ptr(), tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

} // namespace

AttentionTensors readable(AttentionTensors const& tensors)
{
    Tensor const& q = tensors.q;
    checkHeads(q, tensors.k, tensors.v);
    checkMasks(tensors.masks, {{q.size(0), q.size(1), q.size(2), tensors.k.size(2)}, q, "q"});
    return {withNeighbours(q, false), withNeighbours(tensors.k, false), withNeighbours(tensors.v, false),
        readable(tensors.masks)};
}

FusedAttentionParams paramsOf(AttentionTensors const& tensors, MaskScalars const& scalars, bool isExact)
{
    checkScalars(scalars);
    FusedAttentionParams params;
    params.query = constHeadTensor(tensors.q);
    params.key = constHeadTensor(tensors.k);
    params.value = constHeadTensor(tensors.v);
    params.batch = tensors.q.size(0);
    params.heads = tensors.q.size(1);
    params.queries = tensors.q.size(2);
    params.headSize = tensors.q.size(3);
    params.kvHeads = tensors.k.size(1);
    params.keys = tensors.k.size(2);
    params.valueSize = tensors.v.size(3);
    params.type = dataType(tensors.q, "q");
    params.isExact = isExact;
    setMask(params, tensors.masks, scalars, kScoreDims);
    return params;
}

} // namespace attngraft::torch_library
