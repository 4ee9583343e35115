// SPDX-License-Identifier: Apache-2.0
#include "cli/tensor_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

namespace presum::cli {
namespace {

class TensorFiles : public testing::Test {
 protected:
  TensorFiles() { std::filesystem::create_directories(folder_); }
  ~TensorFiles() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    const auto path = folder_ / name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string error(const std::string& name, const std::string& bytes,
                    std::optional<Dtype> said = {}) const {
    const auto file = TensorFile::open(write(name, bytes), said);
    if (file) return "";
    return file.error().message.substr(folder_.string().size() + 1 + name.size());
  }

 private:
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("presum_tensor_file_" + std::to_string(getpid()));
};

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string npy(const std::string& descr, const std::string& shape, const std::string& data,
                const std::string& order = "False") {
  const std::string header =
      "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
  const auto length = static_cast<std::uint16_t>(header.size());
  return "\x93NUMPY" + std::string("\x01\x00", 2) + bytes_of(std::vector{length}) + header + data;
}

std::string safetensors(const std::string& header, const std::string& data) {
  return bytes_of(std::vector{static_cast<std::uint64_t>(header.size())}) + header + data;
}

TEST_F(TensorFiles, ReadNpyPieceByPiece) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  auto file = TensorFile::open(write("a.npy", npy("<f4", "(6,)", bytes_of(values))), {});
  ASSERT_TRUE(file);
  EXPECT_EQ(file->dtype(), Dtype::kF32);
  EXPECT_EQ(file->rows(), 1U);
  EXPECT_EQ(file->elements(), 6U);
  std::vector<float> part(3);
  ASSERT_TRUE(file->read(2, 3, reinterpret_cast<std::byte*>(part.data())));
  EXPECT_EQ(part, (std::vector<float>{3, 4, 5}));
}

TEST_F(TensorFiles, ANpyOfTwoDimensionsHasRows) {
  const auto data = bytes_of(std::vector<double>(6));
  const auto file = TensorFile::open(write("a.npy", npy("<f8", "(2, 3)", data)), {});
  EXPECT_EQ(file->rows(), 2U);
  EXPECT_EQ(file->row_elements(), 3U);
}

TEST_F(TensorFiles, RawTwoBytesNeedAWord) {
  const auto file = npy("|V2", "(2,)", "abcd");
  EXPECT_EQ(error("a.npy", file), ": two bytes an element: say what they are with --dtype bf16");
  EXPECT_EQ(error("a.npy", file, Dtype::kBF16), "");
  EXPECT_EQ(error("a.npy", npy("<u2", "(2,)", "abcd"), Dtype::kBF16), "");
  EXPECT_EQ(error("a.npy", npy("<f4", "(1,)", "abcd"), Dtype::kBF16),
            ": holds fp32, and --dtype says bf16");
}

TEST_F(TensorFiles, HostileNpyIsRefusedInOneLine) {
  const std::string cut = ": cut off: the .npy is not whole";
  EXPECT_EQ(error("a.npy", npy("<f4", "(7,)", "abcd")), cut);
  EXPECT_EQ(error("a.npy", npy("<f4", "(1152921504606846976,16)", "abcd")), cut);
  EXPECT_EQ(error("a.npy", std::string("\x93NUMPY\x01", 7)), cut);
  EXPECT_EQ(error("a.npy", "\x93NUMPY" + std::string("\x02\0\xff\xff\xff\xff", 6)),
            ": the .npy header is too long");
  EXPECT_EQ(error("a.npy", npy("<i8", "(1,)", "abcdefgh")),
            ": holds <i8; fp32, fp64, fp16 and bf16 are possible");
  EXPECT_EQ(error("a.npy", npy("<f4", "(1,)a", "abcd")), "");
  EXPECT_EQ(error("a.npy", npy("<f4", "(x,)", "abcd")), ": the .npy header cannot be read");
  EXPECT_EQ(error("a.npy", npy("<f4", "(99999999999999999999,)", "abcd")),
            ": the .npy header cannot be read");
  EXPECT_EQ(error("a.npy", npy("<f4", "(1, 1)", "abcd", "True")),
            ": stored by columns; save numpy.ascontiguousarray(x)");
  EXPECT_EQ(error("a.txt", "hello"), ": neither .npy nor .safetensors");
  EXPECT_EQ(TensorFile::open("/nowhere/a.npy", {}).error().code, ErrorCode::kNotFound);
}

TEST_F(TensorFiles, SafetensorsAreJoinedByName) {
  const auto header =
      R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},"__metadata__":{"x":"y"}})";
  auto file = TensorFile::open(
      write("m.safetensors", safetensors(header, bytes_of(std::vector<float>{1, 2, 3}))), {});
  ASSERT_TRUE(file);
  EXPECT_EQ(file->elements(), 3U);
  std::vector<float> all(3);
  ASSERT_TRUE(file->read(0, 3, reinterpret_cast<std::byte*>(all.data())));
  EXPECT_EQ(all, (std::vector<float>{3, 1, 2}));
}

TEST_F(TensorFiles, HostileSafetensorsAreRefusedInOneLine) {
  const auto refuse = [&](const std::string& header) {
    return error("a.safetensors", safetensors(header, "abcdefgh"));
  };
  EXPECT_EQ(refuse("[]"), ": the .safetensors header is no JSON object");
  EXPECT_EQ(refuse("{"), ": the .safetensors header is no JSON object");
  EXPECT_EQ(refuse(std::string(100'000, '[')), ": the .safetensors header is no JSON object");
  EXPECT_EQ(refuse("{}"), ": no tensor in it");
  EXPECT_EQ(refuse(R"({"a":3})"), ": tensor a: no dtype, or no two data_offsets");
  EXPECT_EQ(refuse(R"({"a":{"dtype":"F32","data_offsets":[-4,4]}})"),
            ": tensor a: no dtype, or no two data_offsets");
  EXPECT_EQ(refuse(R"({"a":{"dtype":"F32","data_offsets":[0,12]}})"),
            ": tensor a: data_offsets outside the file, or not whole elements");
  EXPECT_EQ(refuse(R"({"a":{"dtype":"F32","data_offsets":[8,4]}})"),
            ": tensor a: data_offsets outside the file, or not whole elements");
  EXPECT_EQ(refuse(R"({"\u001b[2J":{"dtype":"I64","data_offsets":[0,8]}})"),
            ": tensor ?[2J: I64; all tensors must be of one of fp32, fp64, fp16, bf16");
  EXPECT_EQ(error("a.safetensors", "abc"), ": cut off: the .safetensors is not whole");
  EXPECT_EQ(error("a.safetensors", std::string(8, '\xff')),
            ": the .safetensors header is too long");
}

TEST_F(TensorFiles, DeeplyNestedSafetensorsAreRefusedInOneLine) {
  const std::string nested = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  const auto refuse = [&](const std::string& header) {
    return error("a.safetensors", safetensors(header, "abcdefgh"));
  };
  const std::string refused = ": tensor a: no dtype, or no two data_offsets";
  EXPECT_EQ(refuse(R"({"a":{"dtype":)" + nested + R"(,"data_offsets":[0,8]}})"), refused);
  EXPECT_EQ(refuse(R"({"a":{"dtype":"F32","data_offsets":)" + nested + "}}"), refused);
  EXPECT_EQ(refuse(R"({"a":)" + nested + "}"), refused);
  EXPECT_EQ(refuse(R"({"__metadata__":)" + nested +
                   R"(,"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})"),
            "");
}

TEST_F(TensorFiles, FilesThatDoNotBelongTogetherAreNamed) {
  const auto open = [&](const std::string& name, const std::string& bytes) {
    return *TensorFile::open(write(name, bytes), {});
  };
  const auto one = open("1.npy", npy("<f4", "(1,)", "abcd"));
  const auto two = open("2.npy", npy("<f4", "(2,)", "abcdefgh"));
  const auto wide = open("3.npy", npy("<f8", "(1,)", "abcdefgh"));
  EXPECT_EQ(TensorFile::difference(one, one), std::nullopt);
  EXPECT_TRUE(TensorFile::difference(one, two)->ends_with("1 and 2 elements"));
  EXPECT_TRUE(TensorFile::difference(one, wide)->ends_with("fp32 and fp64"));
}

}  // namespace
}  // namespace presum::cli
