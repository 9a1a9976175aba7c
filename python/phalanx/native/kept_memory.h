// Large memory for results of TensorFlow's operations that is kept for the next result.
//
// A function allocates each result anew, on any of several threads. The C library gives large memory of such a thread back to the kernel at
// once, and the next result takes a fault for each of its pages: as long as the collective itself.
#ifndef PHALANX_KEPT_MEMORY_H_
#define PHALANX_KEPT_MEMORY_H_

#include <cstddef>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>

#include "tensorflow/core/framework/allocator.h"

namespace phalanx {

class KeptMemory : public tensorflow::Allocator {
 public:
  // Smaller results are TensorFlow's own matter.
  static constexpr size_t kLeastBytes = 1 << 20;
  // No more than this is kept; what was kept for the longest time goes first.
  static constexpr size_t kMostKeptBytes = 64 << 20;

  // It is never destroyed: tensors may outlive everything else.
  static KeptMemory* Get() {
    static KeptMemory* one = new KeptMemory;
    return one;
  }

  std::string Name() override { return "phalanx"; }

  void* AllocateRaw(size_t alignment, size_t n_bytes) override {
    if (alignment < kAllocatorAlignment) alignment = kAllocatorAlignment;
    std::unique_lock<std::mutex> held(lock_);
    for (auto block = kept_.begin(); block != kept_.end(); ++block) {
      // Only a result of the same size, as that of the next step is.
      if (block->n_bytes != n_bytes || reinterpret_cast<size_t>(block->address) % alignment != 0) continue;
      void* address = block->address;
      n_kept_bytes_ -= n_bytes;
      kept_.erase(block);
      sizes_[address] = n_bytes;
      return address;
    }
    held.unlock();
    const size_t rounded = (n_bytes + alignment - 1) / alignment * alignment;
    void* address = std::aligned_alloc(alignment, rounded);
    if (address == nullptr) return nullptr;
    held.lock();
    sizes_[address] = n_bytes;
    return address;
  }

  void DeallocateRaw(void* address) override {
    std::deque<Block> released;
    {
      std::lock_guard<std::mutex> held(lock_);
      auto size = sizes_.find(address);
      const Block block = {address, size->second};
      sizes_.erase(size);
      if (block.n_bytes > kMostKeptBytes) {
        // It would drive out all others.
        released.push_back(block);
      } else {
        kept_.push_back(block);
        n_kept_bytes_ += block.n_bytes;
      }
      while (n_kept_bytes_ > kMostKeptBytes) {
        n_kept_bytes_ -= kept_.front().n_bytes;
        released.push_back(kept_.front());
        kept_.pop_front();
      }
    }
    for (const Block& block : released) std::free(block.address);
  }

 private:
  struct Block {
    void* address;
    size_t n_bytes;
  };

  std::mutex lock_;
  // From the one that was kept first to the last.
  std::deque<Block> kept_;
  size_t n_kept_bytes_ = 0;
  // Of memory that is in use.
  std::unordered_map<void*, size_t> sizes_;
};

}  // namespace phalanx

#endif  // PHALANX_KEPT_MEMORY_H_
