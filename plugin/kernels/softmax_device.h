// What the choice of a softmax kernel, forward or backward, needs to know of a device.
#pragma once

namespace attngraft
{

struct SoftmaxDevice
{
    int multiprocessors;
    bool hasClusters;   //!< and the library has code for them
    int sharedBytes{0}; //!< that a block may have
};

//! Of the current device; where it cannot be asked, what serves every one.
SoftmaxDevice currentSoftmaxDevice();

} // namespace attngraft
