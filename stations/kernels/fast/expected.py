"""What every unit must make of the fixed input (`numerics.py`). A change here changes the bits of all results."""

from __future__ import annotations

EXPECTED: dict[str, str] = {
    "attend": "14458f3e17d7c5d7b96604fa0c968b23df51051b4aeb9abfe61e2d60d2f93f94",
    "lookup.bf16": "554f93fe97074f166a82e402345005d9f8bbad18681a6806d417cc10d8987ad6",
    "lookup.f16": "da7fab95036db214b43d7293c03f9d304f606bd82e7e47d6b766b70ee8a9afd2",
    "lookup.f32": "801975b998883864f5cdf42a60e2f8873da50bccb10c3012e69ded241d4dcc0f",
    "lookup.q4_0": "f9ddcde4b111e4b9c5aa67ee4de3eaf522c844c020594277431db45522968805",
    "lookup.q4_1": "f34cae29948e125bf22d0a5af3d4d70400e721cf53547bccb979e6792c378834",
    "lookup.q4_k": "e91ecb05a72f8ec528001761666495b3705fdd5b74a12fd460c9864a9f076301",
    "lookup.q5_0": "d408470099ce3e57517ff9c8f92f05da91c92d07fde7b0c980c194afd4fd2508",
    "lookup.q5_1": "e5d5d291f155834d74a7f30f0698a22395b4ba77714335583a9beb69ef5795b5",
    "lookup.q5_k": "f0213e2a39da5a9d56910656941fb36a87bb2f18c3711cbd0818d7c5daf84c8e",
    "lookup.q6_k": "55d6951221ea55bf6344b004681750bbe14993c6c322a9f5042048fcf2d626c0",
    "lookup.q8_0": "cd0fe699cea903ed4c336b3f1de6d1fcaedcf8524c87395088d7337f41861ace",
    "product.bf16": "3378162ddd328e313bbec7385ebcf91f04e56a8995634b67ce13cd54c80c26ec",
    "product.f16": "c7c5ee7c9c435e9dbabdbbc28e9f900ab94e460fd5e28d9a015aee621c6e934a",
    "product.f32": "cddbf1b2aa22dc5845546929f3c27886c3f76b8ed55dcc2c4f346ba920eb402d",
    "product.q4_0": "30484cdb3bd9208c71d7958393585f9347b61147dcf70d2a26372076b7071998",
    "product.q4_1": "007ca9d3438f6e93bca875937f9b5881d829918d3c2ee822e2c3581156c6771a",
    "product.q4_k": "01adc771c2456951f705071f140aeb3c0a175f2504be70d94cac84326bf666ac",
    "product.q5_0": "b5ef24ebfc46ab140d56c8591cdafed740c97c3cf6ca5eb02c13bff1c574c010",
    "product.q5_1": "1ad75532ae76f995931c95ab3722dd35b9da7739c4c870256f01a75d74b7767e",
    "product.q5_k": "d62ec20a6e1b717b7320a76775316f46453a3d59f8b81d53509d53c8d52e18ce",
    "product.q6_k": "916b114a6d51eb1117ae1b9bbac0701162a71719a995dd392462460cf7de7112",
    "product.q8_0": "1c2c851a68d278b3f462ad8996cd14b57b99773ce5e24a1469ae0209c9ce3257",
}
# the products of the set `fast-int8`, whose other units are those above
EXPECTED_INT8: dict[str, str] = {
    "int8.q4_0": "3aa628b8f2c58f3d0cea1163d6a4779d16d9fac126c1afd5f79d8ddb868485d1",
    "int8.q4_1": "c840ff78ad323ef44ce7c87a52759f0fb3f8a35290d89fa865928c1233c22a09",
    "int8.q4_k": "c0c2a7b1af65048f1d035695fc6bc6dc09731b1cf547f49fbcdbf8464c17a314",
    "int8.q5_0": "af49e10fe77879acdb05cf56e91e53b9235998784293c72c2c70e7258000a3ff",
    "int8.q5_1": "11764536007c3e7092010f799879164f0a0bcafe987612264ab7c93a44324c1b",
    "int8.q5_k": "37ef9e43a1adb4fe01506fa595f028d3787be8bb00e980dd5379ecbcfc2da712",
    "int8.q6_k": "321ab63dcf68f98d404ee30fd5c7db77dd42c12a30f36be0c3a43be7f8a46da1",
    "int8.q8_0": "6a75ab8ab5c2434c7bf8ef54aca380a39d6587e0f89480704b8c152598294b3f",
}
