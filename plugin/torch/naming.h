// The edge of an operator: what is refused inside is told in the operator's name.
#pragma once

#include <stdexcept>
#include <string>

namespace attngraft::torch_library
{

//! What `call` returns. An exception of it becomes std::runtime_error "attngraft::NAME: MESSAGE".
template <typename Call>
auto inTheNameOf(char const* name, Call const& call)
{
    try
    {
        return call();
    }
    catch (std::exception const& error)
    {
        throw std::runtime_error(std::string("attngraft::") + name + ": " + error.what());
    }
}

} // namespace attngraft::torch_library
