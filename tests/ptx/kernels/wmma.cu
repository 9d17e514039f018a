#include <mma.h>
using namespace nvcuda;
#define BK 32
#define PITCH (BK + 8)
extern "C" __global__ void wmma_gemm(const half* A, const half* B, float* C, int M, int N, int K) {
  // block 64x64, 4 warps, each 32x32 (2x2 fragments)
  __shared__ __align__(32) half As[64][PITCH], Bs[BK][64 + 8];
  int t = threadIdx.x, w = t >> 5, wr = (w >> 1) * 32, wc = (w & 1) * 32;
  int r0 = blockIdx.y * 64, c0 = blockIdx.x * 64;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> c[2][2];
  for (int i = 0; i < 2; ++i) for (int j = 0; j < 2; ++j) wmma::fill_fragment(c[i][j], 0.f);
  for (int k0 = 0; k0 < K; k0 += BK) {
    for (int i = t; i < 64 * BK / 8; i += 128) {
      int r = i / (BK / 8), q = i % (BK / 8) * 8;
      *(uint4*)&As[r][q] = *(const uint4*)&A[(r0 + r) * K + k0 + q];
    }
    for (int i = t; i < BK * 64 / 8; i += 128) {
      int r = i / 8, q = i % 8 * 8;
      *(uint4*)&Bs[r][q] = *(const uint4*)&B[(k0 + r) * N + c0 + q];
    }
    __syncthreads();
    for (int k = 0; k < BK; k += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a[2];
      wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> b[2];
      for (int i = 0; i < 2; ++i) wmma::load_matrix_sync(a[i], &As[wr + 16 * i][k], PITCH);
      for (int j = 0; j < 2; ++j) wmma::load_matrix_sync(b[j], &Bs[k][wc + 16 * j], 64 + 8);
      for (int i = 0; i < 2; ++i) for (int j = 0; j < 2; ++j) wmma::mma_sync(c[i][j], a[i], b[j], c[i][j]);
    }
    __syncthreads();
  }
  for (int i = 0; i < 2; ++i) for (int j = 0; j < 2; ++j)
    wmma::store_matrix_sync(&C[(r0 + wr + 16 * i) * N + c0 + wc + 16 * j], c[i][j], N, wmma::mem_row_major);
}

// one product of a shape, elements of a type
#ifdef SHAPE
extern "C" __global__ void one_product(const OPERAND* a, const OPERAND* b, RESULT* c) {
  wmma::fragment<wmma::matrix_a, SHAPE, OPERAND, wmma::row_major> x;
  wmma::fragment<wmma::matrix_b, SHAPE, OPERAND, wmma::col_major> y;
  wmma::fragment<wmma::accumulator, SHAPE, RESULT> z;
  wmma::fill_fragment(z, (RESULT)0);
  wmma::load_matrix_sync(x, a, DEPTH);
  wmma::load_matrix_sync(y, b, DEPTH);
  wmma::mma_sync(z, x, y, z);
  wmma::store_matrix_sync(c, z, WIDTH, wmma::mem_row_major);
}
#endif
