// Masked softmax on the CPU as the contract writes it down, over the kernels' parameters: a stand-in for the launch
// where a caller of it is tested. Every stride and pointer is followed; mask.h says what is allowed.
#pragma once

#include "masked_softmax.h"

namespace attngraft
{

//! Writes params.probabilities. The pointers are to host memory. Throws std::runtime_error for strides that the kernels
//! refuse.
void referenceSoftmax(MaskedSoftmaxParams const& params);

} // namespace attngraft
