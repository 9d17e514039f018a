// boxes of a matrix by TMA, in one block or for a cluster of two
#ifndef EXPECTED
#define EXPECTED 1024
#endif
#ifndef LANDED
#define LANDED asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared.b64 p, [%0], 0;\n@!p bra again;\n}" :: "r"(at(&full)) : "memory");
#endif
#ifndef FENCE
#define FENCE asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif

struct alignas(64) Map { char held[128]; };

__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ void start(unsigned long long* full) {
  if (threadIdx.x == 0)
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(at(full)) : "memory");
}

__device__ void expect(unsigned long long* full) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(at(full)), "r"(EXPECTED) : "memory");
}

// y = x + 1, box by box: rows of 32 floats, 16-byte pieces swizzled over 128 bytes
extern "C" __global__ void boxes(const __grid_constant__ Map x, const __grid_constant__ Map y) {
  __shared__ alignas(1024) float tile[8][32];
  __shared__ alignas(8) unsigned long long full;
  int column = blockIdx.x * 32, row = blockIdx.y * 8;
  start(&full);
  __syncthreads();
  if (threadIdx.x == 0) {
    expect(&full);
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 :: "r"(at(tile)), "l"(&x), "r"(column), "r"(row), "r"(at(&full)) : "memory");
  }
  LANDED
  for (int r = 0; r < 8; ++r) tile[r][threadIdx.x] += 1;
  FENCE
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                 :: "l"(&y), "r"(column), "r"(row), "r"(at(tile)) : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
  }
}

// each block of a cluster of two writes out what the first one fetched for both
extern "C" __global__ void __cluster_dims__(2, 1, 1) multicast(const __grid_constant__ Map x, float* y) {
  __shared__ alignas(1024) float tile[8][32];
  __shared__ alignas(8) unsigned long long full;
  start(&full);
  if (threadIdx.x == 0) asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  if (threadIdx.x == 0) expect(&full);
  if (threadIdx.x == 0 && blockIdx.x == 0)
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
                 :: "r"(at(tile)), "l"(&x), "r"(0), "r"(0), "r"(at(&full)), "h"((unsigned short)3) : "memory");
  LANDED
  for (int r = 0; r < 8; ++r) y[(blockIdx.x * 8 + r) * 32 + threadIdx.x] = tile[r][threadIdx.x];
}
