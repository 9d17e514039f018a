#include <cooperative_groups.h>
namespace cg = cooperative_groups;

extern "C" __global__ void turned(float* x, float* out) {
  if (threadIdx.x == 0) x[blockIdx.x] = blockIdx.x;
  cg::this_grid().sync();
  if (threadIdx.x == 0) out[blockIdx.x] = x[gridDim.x - 1 - blockIdx.x];
}
