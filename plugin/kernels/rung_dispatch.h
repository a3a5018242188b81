// From a rung's number to a template argument: the way through a table, the same for all of them.
#pragma once

#include <cuda_runtime_api.h>

#include <type_traits>

namespace attngraft
{

//! use(index) with the rung as a constant of the type std::integral_constant, among the first `count` of a table.
template <int count, int index = 0, typename Use>
cudaError_t withRung(int rung, Use const& use)
{
    if constexpr (index < count)
    {
        return rung == index ? use(std::integral_constant<int, index>{}) : withRung<count, index + 1>(rung, use);
    }
    return cudaErrorInvalidValue;
}

} // namespace attngraft
