/* SPDX-License-Identifier: Apache-2.0 */
/* Frees from a module of the name of the one that holds PyTorch's caching allocator: by that name the library knows it. */
#include <cuda_runtime_api.h>

__attribute__((visibility("default"))) cudaError_t pool_test_cache_free(cudaError_t (*free_block)(void *), void *block);
cudaError_t pool_test_cache_free(cudaError_t (*free_block)(void *), void *block) {
  volatile cudaError_t status = free_block(block); /* no tail call: the return address has to be here */
  return status;
}
