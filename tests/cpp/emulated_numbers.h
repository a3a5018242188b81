// The bits of 16-bit floating point numbers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace attngraft::emulation
{

inline float toFloat(uint16_t bits, bool isHalf)
{
    if (isHalf)
    {
        __half_raw raw;
        raw.x = bits;
        return __half2float(__half(raw));
    }
    __nv_bfloat16_raw raw;
    raw.x = bits;
    return __bfloat162float(__nv_bfloat16(raw));
}

} // namespace attngraft::emulation
