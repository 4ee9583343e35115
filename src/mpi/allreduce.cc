// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "base/try.h"
#include "presum/mpi.h"

namespace presum::mpi {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::size_t kBlock = std::size_t{1} << 20;  // elements reduced at a time

// What a rank asks for; must be equal on every rank, except the leaves.
struct Request {
  std::uint64_t count;
  std::uint64_t kind;  // dtype, mean
  std::uint64_t leaves;
};

Status check(int code) {
  if (code == MPI_SUCCESS) return {};
  return fail(ErrorCode::kIo, "presum: MPI failed in a reproducible all-reduce");
}

// How to reduce one block of the buffers of all ranks.
struct Reduction {
  MPI_Comm comm;
  std::vector<int> leaves_of;  // for each rank
  Dtype dtype;
  std::uint32_t divisor;

  std::size_t ranks() const { return leaves_of.size(); }
  std::size_t leaves() const {
    return std::accumulate(leaves_of.begin(), leaves_of.end(), std::size_t{0});
  }
};

// The leaves as (rank, leaf, element), padded with zeros.
Bytes in_chunks(reduce::Leaves leaves, std::size_t bytes, std::size_t width, std::size_t ranks) {
  Bytes out(ranks * leaves.size() * width);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::size_t begin = std::min(rank * width, bytes);
    const std::size_t length = std::min(width, bytes - begin);
    for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf) {
      std::memcpy(out.data() + (rank * leaves.size() + leaf) * width,
                  static_cast<const std::byte*>(leaves[leaf]) + begin, length);
    }
  }
  return out;
}

std::vector<int> starts(const std::vector<int>& lengths) {
  std::vector<int> out(lengths.size(), 0);
  std::partial_sum(lengths.begin(), lengths.end() - 1, out.begin() + 1);
  return out;
}

Status exchange(const Bytes& sent, std::size_t width, Bytes& received, const Reduction& all) {
  std::vector<int> out(all.ranks(), static_cast<int>(sent.size() / all.ranks()));
  std::vector<int> in;
  for (const int leaves : all.leaves_of) in.push_back(leaves * static_cast<int>(width));
  return check(MPI_Alltoallv(sent.data(), out.data(), starts(out).data(), MPI_BYTE, received.data(),
                             in.data(), starts(in).data(), MPI_BYTE, all.comm));
}

Status exact(reduce::Leaves leaves, std::size_t count, void* out, const Reduction& all) {
  const std::size_t item = element_bytes(all.dtype);
  const std::size_t elements = (count + all.ranks() - 1) / all.ranks();
  const std::size_t width = elements * item;
  Bytes received(all.leaves() * width);
  PRESUM_TRY(exchange(in_chunks(leaves, count * item, width, all.ranks()), width, received, all));
  std::vector<const void*> rows;
  for (std::size_t leaf = 0; leaf < all.leaves(); ++leaf) rows.push_back(&received[leaf * width]);
  Bytes chunk(width);
  PRESUM_TRY(reduce::exact(rows, all.dtype, elements, all.divisor, chunk.data()));
  Bytes sums(width * all.ranks());
  const auto length = static_cast<int>(width);
  PRESUM_TRY(check(
      MPI_Allgather(chunk.data(), length, MPI_BYTE, sums.data(), length, MPI_BYTE, all.comm)));
  std::memcpy(out, sums.data(), count * item);
  return {};
}

std::uint64_t kind_of(Dtype dtype, Mean mean) {
  return static_cast<std::uint64_t>(dtype) << 8 | static_cast<std::uint64_t>(mean);
}

// The error for which every rank refuses, based on the requests of all ranks.
std::optional<Error> objection(const std::vector<Request>& requests) {
  const auto invalid = [](const char* text) { return Error{ErrorCode::kInvalidArgument, text}; };
  const Request& first = requests.front();
  std::uint64_t leaves = 0;
  for (const Request& request : requests) {
    if (request.count != first.count || request.kind != first.kind) {
      return invalid("presum: ranks disagree about count, dtype or mean of an all-reduce");
    }
    if (request.leaves == 0) return invalid("presum: a rank brings no leaf to an all-reduce");
    leaves += std::min<std::uint64_t>(request.leaves, reduce::kLeavesMax + 1);
  }
  if (leaves > reduce::kLeavesMax) return invalid("presum: more than 32,767 leaves");
  return {};
}

Result<std::vector<Request>> requests_of_all(const Request& own, MPI_Comm comm) {
  int ranks = 0;
  PRESUM_TRY(check(MPI_Comm_size(comm, &ranks)));
  std::vector<Request> all(static_cast<std::size_t>(ranks));
  PRESUM_TRY(
      check(MPI_Allgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, comm)));
  return all;
}

std::uint32_t divisor_of(Mean mean, const Reduction& all) {
  if (mean == Mean::kNone) return 1;
  return static_cast<std::uint32_t>(mean == Mean::kOverRanks ? all.ranks() : all.leaves());
}

}  // namespace

Status allreduce(reduce::Leaves leaves, Dtype dtype, std::size_t count, Mean mean, void* out,
                 MPI_Comm comm) {
  PRESUM_ASSIGN(const auto requests,
                requests_of_all({count, kind_of(dtype, mean), leaves.size()}, comm));
  if (auto reason = objection(requests)) return *reason;
  Reduction all{comm, {}, dtype, 1};
  for (const Request& request : requests) {
    all.leaves_of.push_back(static_cast<int>(request.leaves));
  }
  all.divisor = divisor_of(mean, all);
  // MPI counts the chunks of all leaves in int.
  const std::size_t block =
      std::clamp<std::size_t>((std::size_t{1} << 27) / all.leaves(), 1, kBlock);
  std::vector<const void*> part(leaves.size());
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t offset = begin * element_bytes(dtype);
    std::transform(leaves.begin(), leaves.end(), part.begin(),
                   [&](const void* leaf) { return static_cast<const std::byte*>(leaf) + offset; });
    PRESUM_TRY(
        exact(part, std::min(block, count - begin), static_cast<std::byte*>(out) + offset, all));
  }
  return {};
}

}  // namespace presum::mpi
