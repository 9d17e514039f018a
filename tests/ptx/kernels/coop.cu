#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
extern "C" __global__ void cgk(const int* x, int* o) { auto b = cg::this_thread_block(); auto w = cg::tiled_partition<16>(b); int s = cg::reduce(w, x[b.thread_rank()], cg::plus<int>()); o[b.thread_rank()] = s + w.meta_group_rank() * 1000; b.sync(); }
